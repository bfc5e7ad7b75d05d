//! The lab's routes. Replies have the service's envelope, as its pages read them; `docs/LAB-AND-LEARN.md` describes them.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, Path, Query, Request, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use strategies::Strategy;
use subtle::ConstantTimeEq;
use tokio::sync::Mutex;
use tokio_util::task::TaskTracker;
use workload::Environment;
use workload::comparison::document::{Document, InjectedFault, Setting};
use workload::comparison::{self, RunState};

use super::refusal::Refusal;
use super::runs::Runs;
use super::{page, session_story};
use crate::shop_cache::hot_key;

/// How long a reply waits for a fault that was injected, so that it can say if the fault fails at once.
const FAILS_WITHIN: Duration = Duration::from_millis(300);

/// Longest body of a request, bytes.
const LONGEST_BODY: usize = 16 * 1024;

/// Everything that a request of the lab works with.
pub struct Lab {
    pub environment: Environment,
    pub runs: Runs,
    /// Faults that are not over.
    pub faults: TaskTracker,
    /// Locked while a hot key is read, which is not to be disturbed.
    pub hot_key: Mutex<()>,
}

type Reply = Result<Json<Value>, Refusal>;

fn data(data: impl serde::Serialize) -> Reply {
    Ok(Json(json!({"success": true, "data": data})))
}

fn done() -> Reply {
    Ok(Json(json!({"success": true})))
}

/// All routes.
pub fn routes(lab: Arc<Lab>) -> Router {
    let zone = lab.environment.access.time_zone;
    let admin_routes = Router::new()
        .route("/lab/runs", post(begin))
        .route("/lab/runs/{id}/stop", post(stop))
        .route("/lab/faults", post(inject))
        .route("/lab/sessions", post(sessions))
        .route("/lab/hot-key", post(read_hot_key))
        .route_layer(from_fn_with_state(lab.clone(), require_admin));
    let public_routes = Router::new()
        .route("/", get(async || Redirect::temporary("/lab")))
        .route("/lab", get(async move || page::lab(zone)))
        .route("/assets/{file}", get(page::asset))
        .route("/lab/about", get(about))
        .route("/lab/runs", get(runs))
        .route("/lab/runs/{id}", get(run))
        .route("/lab/runs/{id}/raw", get(raw))
        .route("/lab/runs/{id}/report", get(report));
    public_routes
        .merge(admin_routes)
        .fallback(page::not_found)
        .layer(DefaultBodyLimit::max(LONGEST_BODY))
        .with_state(lab)
}

/// Layer: refuses requests whose `x-admin-token` is not the administrator's token, and all requests if the lab has no such
/// token. Compares in constant time.
async fn require_admin(
    State(lab): State<Arc<Lab>>,
    request: Request,
    next: Next,
) -> Result<Response, Refusal> {
    let given = request.headers().get("x-admin-token");
    let given = given.map(|token| token.as_bytes()).unwrap_or_default();
    let expected = lab.environment.access.admin_token.as_bytes();
    if expected.is_empty() || !bool::from(expected.ct_eq(given)) {
        return Err(Refusal::forbidden());
    }
    Ok(next.run(request).await)
}

/// A body, or what is wrong with it.
type Body<T> = Result<Json<T>, JsonRejection>;

fn parsed<T>(body: Body<T>) -> Result<T, Refusal> {
    let Json(parsed) = body.map_err(|error| Refusal::bad(error.body_text()))?;
    Ok(parsed)
}

/// What can be run here: the strategies with what each guarantees, the limits and defaults of a run's settings, the faults,
/// and the run that is under way.
async fn about(State(lab): State<Arc<Lab>>) -> Reply {
    let limits = comparison::MOST;
    let nodes = lab.environment.nodes.len();
    let mut faults = InjectedFault::ALL.to_vec();
    faults.retain(|fault| *fault != InjectedFault::KillInstance || lab.environment.can_kill());
    let mut about = json!({
        "nodes": nodes,
        "strategies": Strategy::ALL.map(describe_strategy),
        "defaults": {
            "lanes": [Strategy::ProcessLock.name(), Strategy::ReentrantLock.name()],
            "buyers": 300, "tries": 4, "stock": 200, "instances": nodes.min(2), "spreadSeconds": 6
        },
        "limits": {
            "buyers": limits.buyers, "tries": limits.tries, "stock": limits.stock, "spreadSeconds": limits.spread_seconds
        },
        "faults": faults,
    });
    if let Some(run) = lab.runs.under_way() {
        about["running"] = run.id().into();
    }
    data(about)
}

fn describe_strategy(strategy: Strategy) -> Value {
    let row = strategy.row();
    json!({
        "name": strategy.name(),
        "idea": row.idea,
        "why": row.why,
        "unsafe": strategy.is_unsafe(),
        "oversell": row.oversell.can_break(),
        "secondOrderOnOneNode": row.second_order[0].can_break(),
        "secondOrderOnTwoNodes": row.second_order[1].can_break(),
        "lost": row.lost.can_break(),
    })
}

/// Begins a run (admin).
async fn begin(State(lab): State<Arc<Lab>>, body: Body<Setting>) -> Reply {
    let setting = parsed(body)?;
    setting.check(&lab.environment).map_err(Refusal::bad)?;
    let _undisturbed = lab.hot_key.try_lock().map_err(|_| Refusal::hot_key())?;
    let seed = setting.seed;
    let run = lab.runs.begin(setting);
    let run = run.ok_or_else(Refusal::run_under_way)?;
    data(json!({"id": run.id(), "seed": seed}))
}

/// The runs that are kept, newest first; with how each lane compares to its guarantees, once it is judged.
async fn runs(State(lab): State<Arc<Lab>>) -> Reply {
    let runs = lab.runs.all().into_iter();
    data(runs.map(summarize_run).collect::<Vec<_>>())
}

fn summarize_run(run: Arc<RunState>) -> Value {
    let Document {
        id,
        started_at,
        state,
        setting,
        lanes,
        ..
    } = run.document(usize::MAX);
    let results = lanes.into_iter().filter_map(|lane| lane.result);
    let conformances: Vec<_> = results.map(|result| result.conformance).collect();
    json!({
        "id": id, "startedAt": started_at, "state": state, "setting": setting,
        "conformances": conformances,
    })
}

#[derive(Deserialize)]
struct Known {
    /// How many samples are known already.
    #[serde(default)]
    from: usize,
}

/// A run as it stands, without the samples that are known already.
async fn run(
    State(lab): State<Arc<Lab>>,
    Path(id): Path<String>,
    Query(Known { from }): Query<Known>,
) -> Reply {
    data(lab.find(&id)?.document(from))
}

/// Stops a run (admin): no purchase is begun any more; those under way are finished and judged.
async fn stop(State(lab): State<Arc<Lab>>, Path(id): Path<String>) -> Reply {
    lab.find(&id)?.stop();
    done()
}

/// A run with every attempt of it, as a file.
async fn raw(State(lab): State<Arc<Lab>>, Path(id): Path<String>) -> Result<Response, Refusal> {
    let text = comparison::report::raw(&*lab.find(&id)?).map_err(Refusal::failed)?;
    Ok(download(
        "application/json",
        &format!("seckill-{id}.json"),
        text,
    ))
}

/// The report as one HTML file, for any browser, offline.
async fn report(State(lab): State<Arc<Lab>>, Path(id): Path<String>) -> Result<Response, Refusal> {
    let document = lab.find(&id)?.document(0);
    let page = comparison::report::html(&document).map_err(Refusal::failed)?;
    Ok(download(
        "text/html; charset=utf-8",
        &format!("seckill-{id}.html"),
        page,
    ))
}

/// An attachment, which browsers do not show in place: so its scripts never run in this origin. `name` has letters, digits,
/// `-` and `.`.
fn download(kind: &'static str, name: &str, text: String) -> Response {
    let headers = [
        (CONTENT_TYPE, kind.to_owned()),
        (
            CONTENT_DISPOSITION,
            format!("attachment; filename=\"{name}\""),
        ),
        (X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
    ];
    (headers, text).into_response()
}

#[derive(Deserialize)]
struct FaultRequest {
    fault: InjectedFault,
}

/// Injects a fault into the servers (admin), while a run is selling. Answers as soon as the fault is under way, or has failed.
async fn inject(State(lab): State<Arc<Lab>>, body: Body<FaultRequest>) -> Reply {
    let FaultRequest { fault } = parsed(body)?;
    let no_run = "no run is selling; start one, then press the button";
    let run = lab.runs.selling();
    let run = run.ok_or_else(|| Refusal::new("NO_RUN", no_run))?;
    let environment = lab.environment.clone();
    let mut injecting = lab.faults.spawn(async move {
        let outcome = fault.inject(&environment, &run).await;
        if let Err(error) = &outcome {
            eprintln!("loadtest: {fault:?} could not be injected to its end: {error}");
        }
        outcome
    });
    match tokio::time::timeout(FAILS_WITHIN, &mut injecting).await {
        // A time-out (`Err`): the fault goes on, and the tracker waits for its end.
        Err(_) | Ok(Ok(Ok(()))) => done(),
        Ok(Ok(Err(error))) => Err(Refusal::failed(error)),
        Ok(Err(error)) => Err(Refusal::failed(error)),
    }
}

/// Signs a user in at the first instance, and asks it and another one who that is (admin).
async fn sessions(State(lab): State<Arc<Lab>>) -> Reply {
    let [first, second, ..] = &lab.environment.nodes[..] else {
        return Err(Refusal::failed(
            "this needs two instances, and there is one",
        ));
    };
    data(session_story::play(first, second).await?)
}

/// Reads a shop while its key expires, by two read strategies (admin); answers when both are over.
async fn read_hot_key(State(lab): State<Arc<Lab>>) -> Reply {
    let _undisturbed = lab.hot_key.try_lock().map_err(|_| Refusal::hot_key())?;
    if lab.runs.under_way().is_some() {
        return Err(Refusal::run_under_way());
    }
    let lanes = hot_key::play(lab.environment.clone()).await;
    let lanes = lanes.map_err(Refusal::failed)?;
    let id = format!("{:08x}", rand::random::<u32>());
    data(json!({"id": id, "lanes": lanes}))
}

impl Lab {
    fn find(&self, id: &str) -> Result<Arc<RunState>, Refusal> {
        self.runs.find(id).ok_or_else(Refusal::no_run)
    }
}
