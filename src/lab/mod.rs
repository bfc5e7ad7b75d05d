//! The lab: runs a real load against the real instances, two strategies side by side, and lets one hurt the servers
//! meanwhile. For learning; its routes exist only on a server started with `--lab`, and what changes anything
//! needs the administrator's token. The load, the checker and the faults are those of the load tool
//! ([`seckill_loadtest::duel`]); here is only who may ask for what. [`conductor`] keeps the runs.

use axum::extract::State;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use seckill_loadtest::duel;
use seckill_loadtest::duel::document::{Document, Setting};
use seckill_loadtest::duel::mischief::Mischief;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use crate::error::Error;
use crate::http::extract::{Json, Params, Path};
use crate::http::reply::{self, Reply};
use crate::voucher::strategy::Strategy;

pub mod conductor;

pub use conductor::Lab;
use conductor::{Kept, Started};

/// What the lab offers.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct About {
    /// The instance that answers, which conducts.
    node: String,
    /// How many instances there are.
    nodes: usize,
    strategies: Vec<Rung>,
    defaults: Setting,
    limits: Limits,
    faults: Vec<&'static str>,
    /// The run that is under way.
    running: Option<String>,
}

/// A strategy and its table of guarantees.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Rung {
    name: &'static str,
    #[serde(rename = "unsafe")]
    is_unsafe: bool,
    oversell: bool,
    second_order_on_one_node: bool,
    second_order_on_two_nodes: bool,
}

/// Most that a run may be asked for.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Limits {
    buyers: u32,
    tries: u32,
    stock: u32,
    spread_seconds: u32,
}

/// What can be asked for.
#[utoipa::path(
    get, path = "/lab/about", tag = "lab",
    responses((status = 200, description = "Strategies, defaults, limits, faults.", body = Object)),
)]
pub async fn about(State(lab): State<Lab>) -> Reply<About> {
    let rung = |strategy: Strategy| {
        let risks = strategy.risks();
        Rung {
            name: strategy.name(),
            is_unsafe: strategy.is_unsafe(),
            oversell: risks.oversell,
            second_order_on_one_node: risks.second_order_on_one_node,
            second_order_on_two_nodes: risks.second_order_on_two_nodes,
        }
    };
    let Setting { buyers, tries, stock, spread_seconds, .. } = duel::MOST;
    let nodes = lab.nodes();
    let faults = Mischief::ALL.into_iter();
    let faults = faults.filter(|fault| nodes > 1 || *fault != Mischief::KillInstance);
    Ok(reply::data(About {
        node: lab.node().to_owned(),
        nodes,
        strategies: Strategy::ALL.map(rung).into(),
        defaults: Setting {
            lanes: [Strategy::ProcessLock, Strategy::ReentrantLock].map(|s| s.name().to_owned()),
            buyers: 300,
            tries: 4,
            stock: 100,
            instances: nodes.min(2) as u32,
            spread_seconds: 5,
            seed: None,
        },
        limits: Limits { buyers, tries, stock, spread_seconds },
        faults: faults.map(Mischief::name).collect(),
        running: lab.running(),
    }))
}

/// Begins a run (admin); there is one at a time.
#[utoipa::path(
    post, path = "/lab/runs", tag = "lab", security(("x-admin-token" = [])),
    request_body(content = Object, description = "As `defaults` of `GET /lab/about`, within its `limits`.", example = json!({
        "lanes": ["process-lock", "reentrant-lock"], "buyers": 300, "tries": 4, "stock": 100, "instances": 2,
        "spreadSeconds": 5
    })),
    responses((status = 200, description = "The run's id.", body = Started)),
    extensions(("x-codes" = json!(["RUN_UNDER_WAY"]))),
)]
pub async fn start(State(lab): State<Lab>, Json(setting): Json<Setting>) -> Reply<Started> {
    Ok(reply::data(lab.start(setting)?))
}

/// The runs that are kept, newest first.
#[utoipa::path(
    get, path = "/lab/runs", tag = "lab",
    responses((status = 200, description = "Newest first.", body = Vec<Object>)),
)]
pub async fn runs(State(lab): State<Lab>) -> Reply<Vec<Kept>> {
    Ok(reply::data(lab.kept()))
}

/// Parameters of `GET /lab/runs/{id}`.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct From {
    /// Samples that are known already.
    #[serde(default)]
    #[param(example = 0)]
    from: usize,
}

/// A run as it stands, without the samples that are known already.
#[utoipa::path(
    get, path = "/lab/runs/{id}", tag = "lab",
    params(("id" = String, Path, description = "The run's id.", example = "1"), From),
    responses((status = 200, description = "The run.", body = Object)),
    extensions(("x-codes" = json!(["RUN_NOT_FOUND"]))),
)]
pub async fn run(
    State(lab): State<Lab>,
    Path(id): Path<String>,
    Params(From { from }): Params<From>,
) -> Reply<Document> {
    Ok(reply::data(lab.find(&id)?.document(from)))
}

/// Lets nobody more come (admin); what is under way is finished and judged.
#[utoipa::path(
    post, path = "/lab/runs/{id}/stop", tag = "lab", security(("x-admin-token" = [])),
    params(("id" = String, Path, description = "The run's id.", example = "1")),
    responses((status = 200, description = "It ends soon.")),
    extensions(("x-codes" = json!(["RUN_NOT_FOUND"]))),
)]
pub async fn stop(State(lab): State<Lab>, Path(id): Path<String>) -> Reply<()> {
    lab.find(&id)?.stop();
    Ok(reply::done())
}

/// Everything of a run, every attempt included, as a file.
///
/// The file is JSON of its own, without the envelope.
#[utoipa::path(
    get, path = "/lab/runs/{id}/raw", tag = "lab",
    params(("id" = String, Path, description = "The run's id.", example = "1")),
    responses((status = 200, description = "The file.", body = Object)),
    extensions(("x-codes" = json!(["RUN_NOT_FOUND"])), ("x-bare" = json!(true))),
)]
pub async fn raw(State(lab): State<Lab>, Path(id): Path<String>) -> Result<Response, Error> {
    let raw = duel::raw::Raw::of(&*lab.find(&id)?);
    let text = serde_json::to_string_pretty(&raw);
    let text = text.map_err(|fault| Error::Internal(format!("raw data: {fault}")))?;
    Ok(file("application/json", &format!("seckill-{id}.json"), text))
}

/// The report of a run as one HTML file, for any browser, offline.
#[utoipa::path(
    get, path = "/lab/runs/{id}/report", tag = "lab",
    params(("id" = String, Path, description = "The run's id.", example = "1")),
    responses((status = 200, description = "The file.", body = String, content_type = "text/html")),
    extensions(("x-codes" = json!(["RUN_NOT_FOUND"])), ("x-bare" = json!(true))),
)]
pub async fn report(State(lab): State<Lab>, Path(id): Path<String>) -> Result<Response, Error> {
    let document = lab.find(&id)?.document(0);
    let page = duel::report::html(&document);
    let page = page.map_err(|fault| Error::Internal(format!("report: {fault}")))?;
    Ok(file("text/html; charset=utf-8", &format!("seckill-{id}.html"), page))
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
        (HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff")),
    ];
    (headers, text).into_response()
}

/// Body of `POST /lab/faults`.
#[derive(Deserialize)]
pub struct FaultRequest {
    fault: Mischief,
}

/// Does something to the servers (admin), while a run is selling.
#[utoipa::path(
    post, path = "/lab/faults", tag = "lab", security(("x-admin-token" = [])),
    request_body(content = Object, example = json!({ "fault": "pause-redis" })),
    responses((status = 200, description = "Done.")),
    extensions(("x-codes" = json!(["NO_RUN", "LAB_FAULT"]))),
)]
pub async fn fault(State(lab): State<Lab>, Json(request): Json<FaultRequest>) -> Reply<()> {
    lab.play(request.fault).await?;
    Ok(reply::done())
}

/// Ends this process at once (admin), as a crash would.
///
/// Nothing is drained, and there is no answer. Whoever runs it starts it again.
#[utoipa::path(
    post, path = "/lab/instance/kill", tag = "lab", security(("x-admin-token" = [])), responses(),
)]
pub async fn kill() -> Result<Response, Error> {
    tracing::warn!("killing this process, as the lab asked");
    conductor::kill_this_process()
}
