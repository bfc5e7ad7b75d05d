//! The lab: runs a real load against the real instances, two strategies side by side, while faults can be injected. For
//! learning; its routes exist only on a server started with `--lab`, and what changes anything needs the administrator's
//! token. The load, the checker and the faults are [`workload::comparison`], which the load tool runs, too; here are the
//! routes, and in [`runner`] the runs.

use axum::extract::State;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};
use workload::comparison;
use workload::comparison::document::{Document, InjectedFault, Setting};

use crate::error::Error;
use crate::http::extract::{ADMIN_BODY, Json, Params, Path};
use crate::http::reply::{self, Reply};
use strategies::Strategy;

pub mod runner;
mod session_story;

pub use runner::Lab;
use runner::Started;

/// What can be run here.
///
/// The instances, the strategies with what each guarantees (`true` where a violation can happen), the most that a run may be
/// asked for and what is usual, the faults, and the run that is under way.
#[utoipa::path(
    get, path = "/lab/about", tag = "lab",
    responses((status = 200, description = "Strategies, limits, faults.", body = Object)),
)]
pub async fn about(State(lab): State<Lab>) -> Reply<Value> {
    let offered = |strategy: Strategy| {
        let row = strategy.row();
        json!({
            "name": strategy.name(),
            "idea": row.idea,
            "why": row.why,
            "unsafe": strategy.is_unsafe(),
            "oversell": row.oversell.can_break(),
            "secondOrderOnOneNode": row.second_order[0].can_break(),
            "secondOrderOnTwoNodes": row.second_order[1].can_break(),
        })
    };
    let Setting {
        buyers,
        tries,
        stock,
        spread_seconds,
        ..
    } = comparison::MOST;
    let nodes = lab.nodes();
    let faults = InjectedFault::ALL.into_iter();
    let faults = faults.filter(|fault| nodes > 1 || *fault != InjectedFault::KillInstance);
    let mut about = json!({
        "node": lab.node(),
        "nodes": nodes,
        "strategies": Strategy::ALL.map(offered),
        "defaults": {
            "lanes": [Strategy::ProcessLock.name(), Strategy::ReentrantLock.name()],
            "buyers": 300, "tries": 4, "stock": 200, "instances": nodes.min(2), "spreadSeconds": 6
        },
        "limits": { "buyers": buyers, "tries": tries, "stock": stock, "spreadSeconds": spread_seconds },
        "faults": faults.collect::<Vec<_>>(),
    });
    if let Some(run) = lab.running() {
        about["running"] = run.into();
    }
    Ok(reply::data(about))
}

/// Begins a run (admin); there is one at a time.
///
/// Two sales, at once or in turn, by two strategies, each with buyers of its own, on the real instances.
#[utoipa::path(
    post, path = "/lab/runs", tag = "lab", security(("x-admin-token" = [])),
    request_body(
        content = Object,
        description = "`lanes`, two strategies; for each lane `buyers`, `tries` of each, and `stock`; `instances`, 1 or 2; \
            `spreadSeconds` over which the buyers arrive; `inTurn` and `seed`, if wanted. `GET /lab/about` has limits.",
        example = json!({
            "lanes": ["process-lock", "reentrant-lock"], "buyers": 300, "tries": 4, "stock": 100, "instances": 2, "spreadSeconds": 5
        })
    ),
    responses((status = 200, description = "It has begun.", body = Started)),
    extensions(("x-codes" = json!(["RUN_UNDER_WAY"]))),
)]
pub async fn start(
    State(lab): State<Lab>,
    Json(setting): Json<Setting, ADMIN_BODY>,
) -> Reply<Started> {
    Ok(reply::data(lab.start(setting)?))
}

/// The runs that are kept, newest first.
#[utoipa::path(
    get, path = "/lab/runs", tag = "lab",
    responses((status = 200, description = "At most 20.", body = Vec<Object>)),
)]
pub async fn runs(State(lab): State<Lab>) -> Reply<Vec<Value>> {
    Ok(reply::data(lab.kept()))
}

/// Parameters of `GET /lab/runs/{id}`.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Known {
    /// How many samples are known already.
    #[serde(default)]
    #[param(example = 0)]
    from: usize,
}

/// A run as it stands, without the samples that are known already.
#[utoipa::path(
    get, path = "/lab/runs/{id}", tag = "lab",
    params(("id" = String, Path, description = "The run's id.", example = "85397c92"), Known),
    responses((status = 200, description = "Setting, samples, events, and, when it is over, verdicts and stories.", body = Object)),
    extensions(("x-codes" = json!(["RUN_NOT_FOUND"]))),
)]
pub async fn run(
    State(lab): State<Lab>,
    Path(id): Path<String>,
    Params(Known { from }): Params<Known>,
) -> Reply<Document> {
    Ok(reply::data(lab.find(&id)?.document(from)))
}

/// Stops a run (admin): no purchase is begun any more; those under way are finished and judged.
#[utoipa::path(
    post, path = "/lab/runs/{id}/stop", tag = "lab", security(("x-admin-token" = [])),
    params(("id" = String, Path, description = "The run's id.", example = "85397c92")),
    responses((status = 200, description = "It is being stopped, or was over.")),
    extensions(("x-codes" = json!(["RUN_NOT_FOUND"]))),
)]
pub async fn stop(State(lab): State<Lab>, Path(id): Path<String>) -> Reply<()> {
    lab.find(&id)?.stop();
    Ok(reply::done())
}

/// Everything, every attempt included, as a file.
///
/// Answers without the envelope, unless there is no such run.
#[utoipa::path(
    get, path = "/lab/runs/{id}/raw", tag = "lab",
    params(("id" = String, Path, description = "The run's id.", example = "85397c92")),
    responses((status = 200, description = "Download: the run as by `GET /lab/runs/{id}`, with `records`.", body = Object, content_type = "application/json")),
    extensions(("x-codes" = json!(["RUN_NOT_FOUND"])), ("x-download" = json!(true))),
)]
pub async fn raw(State(lab): State<Lab>, Path(id): Path<String>) -> Result<Response, Error> {
    let text = comparison::report::raw(&*lab.find(&id)?);
    let text = text.map_err(|error| Error::Internal(format!("raw data: {error}")))?;
    Ok(file(
        "application/json",
        &format!("seckill-{id}.json"),
        text,
    ))
}

/// The report as one HTML file, for any browser, offline.
///
/// Answers without the envelope, unless there is no such run.
#[utoipa::path(
    get, path = "/lab/runs/{id}/report", tag = "lab",
    params(("id" = String, Path, description = "The run's id.", example = "85397c92")),
    responses((status = 200, description = "Download.", body = String, content_type = "text/html")),
    extensions(("x-codes" = json!(["RUN_NOT_FOUND"])), ("x-download" = json!(true))),
)]
pub async fn report(State(lab): State<Lab>, Path(id): Path<String>) -> Result<Response, Error> {
    let document = lab.find(&id)?.document(0);
    let page = comparison::report::html(&document);
    let page = page.map_err(|error| Error::Internal(format!("report: {error}")))?;
    Ok(file(
        "text/html; charset=utf-8",
        &format!("seckill-{id}.html"),
        page,
    ))
}

/// A download: never shown in place, so that its scripts have no part in this origin.
fn file(kind: &'static str, name: &str, text: String) -> Response {
    let disposition = format!("attachment; filename=\"{name}\"");
    // A run's id is ours: letters and digits.
    let disposition =
        HeaderValue::try_from(disposition).unwrap_or(HeaderValue::from_static("attachment"));
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(kind)),
        (CONTENT_DISPOSITION, disposition),
        (
            HeaderName::from_static("x-content-type-options"),
            HeaderValue::from_static("nosniff"),
        ),
    ];
    (headers, text).into_response()
}

/// Body of `POST /lab/faults`.
#[derive(Deserialize, ToSchema)]
pub struct FaultRequest {
    /// The fault.
    #[schema(value_type = String, pattern = "^(pause-redis|empty-redis|kill-instance|cut-lease)$", example = "pause-redis")]
    fault: InjectedFault,
}

/// Injects a fault into the servers (admin), while a run is selling.
///
/// `pause-redis`: Redis serves no client for 2 s. `empty-redis`: FLUSHALL. `kill-instance`: SIGKILL of another
/// instance. `cut-lease`: for 2 s, every purchase lock's lease ends as soon as it is seen.
#[utoipa::path(
    post, path = "/lab/faults", tag = "lab", security(("x-admin-token" = [])), request_body = FaultRequest,
    responses((status = 200, description = "It happens.")),
    extensions(("x-codes" = json!(["NO_RUN", "LAB_FAULT"]))),
)]
pub async fn fault(
    State(lab): State<Lab>,
    Json(request): Json<FaultRequest, ADMIN_BODY>,
) -> Reply<()> {
    lab.inject(request.fault).await?;
    Ok(reply::done())
}

/// Signs a user in at this instance, and asks it and another one who that is (admin).
///
/// Twice: with the session in this instance's memory, where the other one answers 401, and in Redis. Replies with every
/// request and its status. `LAB_FAULT` where there is one instance, or the sign-in fails.
#[utoipa::path(
    post, path = "/lab/sessions", tag = "lab", security(("x-admin-token" = [])),
    responses((status = 200, description = "The requests and their answers.", body = Object)),
    extensions(("x-codes" = json!(["LAB_FAULT"]))),
)]
pub async fn sessions(State(lab): State<Lab>) -> Reply<Value> {
    Ok(reply::data(lab.session_story().await?))
}

/// Ends this process at once (admin), as a crash would.
///
/// Nothing is drained and nothing is answered. Its supervisor starts it again.
#[utoipa::path(
    post, path = "/lab/instance/kill", tag = "lab", security(("x-admin-token" = [])),
    responses((status = 200, description = "Never: the connection breaks.")),
)]
pub async fn kill() -> Response {
    tracing::warn!("killing this process, as the lab asked");
    runner::kill_this_process()
}
