//! The lab: runs a real load against the real instances, two strategies side by side, and lets one hurt the servers
//! meanwhile. For learning; its routes exist only on a server started with `--lab`, and what changes anything
//! needs the administrator's token. The load, the checker and the faults are those of the load tool
//! ([`seckill_loadtest::duel`]); here is only who may ask for what. [`conductor`] keeps the runs.

use axum::extract::{Query, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use seckill_loadtest::duel;
use seckill_loadtest::duel::document::{Document, Setting};
use seckill_loadtest::duel::mischief::Mischief;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::http::extract::{Json, Path};
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

/// `GET /lab/about`: what can be asked for.
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

/// `POST /lab/runs` (admin): begins a run; there is one at a time.
pub async fn start(State(lab): State<Lab>, Json(setting): Json<Setting>) -> Reply<Started> {
    Ok(reply::data(lab.start(setting)?))
}

/// `GET /lab/runs`: the runs that are kept, newest first.
pub async fn runs(State(lab): State<Lab>) -> Reply<Vec<Kept>> {
    Ok(reply::data(lab.kept()))
}

/// Parameters of `GET /lab/runs/{id}`.
#[derive(Deserialize)]
pub struct From {
    /// Samples that are known already.
    #[serde(default)]
    from: usize,
}

/// `GET /lab/runs/{id}`: a run as it stands, without the samples that are known already.
pub async fn run(
    State(lab): State<Lab>,
    Path(id): Path<String>,
    Query(From { from }): Query<From>,
) -> Reply<Document> {
    Ok(reply::data(lab.find(&id)?.document(from)))
}

/// `POST /lab/runs/{id}/stop` (admin): nobody more comes; what is under way is finished and judged.
pub async fn stop(State(lab): State<Lab>, Path(id): Path<String>) -> Reply<()> {
    lab.find(&id)?.stop();
    Ok(reply::done())
}

/// `GET /lab/runs/{id}/raw`: everything, every attempt included, as a file.
pub async fn raw(State(lab): State<Lab>, Path(id): Path<String>) -> Result<Response, Error> {
    let raw = duel::raw::Raw::of(&*lab.find(&id)?);
    let text = serde_json::to_string_pretty(&raw);
    let text = text.map_err(|fault| Error::Internal(format!("raw data: {fault}")))?;
    Ok(file("application/json", &format!("seckill-{id}.json"), text))
}

/// `GET /lab/runs/{id}/report`: the report as one HTML file, for any browser, offline.
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

/// `POST /lab/faults` (admin): does something to the servers, while a run is selling.
pub async fn fault(State(lab): State<Lab>, Json(request): Json<FaultRequest>) -> Reply<()> {
    lab.play(request.fault).await?;
    Ok(reply::done())
}

/// `POST /lab/instance/kill` (admin): this process ends at once, as by `kill -9`; nothing is drained. Whoever
/// runs it starts it again.
pub async fn kill() -> Result<Response, Error> {
    tracing::warn!("killing this process, as the lab asked");
    conductor::kill_this_process()
}
