//! The story of a session in one node's memory: a user signs in at one instance and asks two of them "who am I?". It is
//! played twice, with the session in that instance's memory and in Redis. Each request is a real one, sent to the
//! instance itself, and is told with the status that it was answered with.

use std::time::{Duration, Instant};

use http::header::{AUTHORIZATION, COOKIE, SET_COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;
use workload::buyers::Envelope;
use workload::http::{Call, Connection, TRACE};
use workload::trace::Trace;
use workload::{Target, phones};

use crate::error::Error;

/// Time limit of one request. All ten together stay below the default of `--request-timeout-ms`.
const LIMIT: Duration = Duration::from_millis(2_500);

/// What two instances know of a user who signed in at the first, by where the session is kept.
#[derive(Serialize, ToSchema)]
pub struct SessionStory {
    /// First with the session in memory, then in Redis.
    parts: Vec<Part>,
}

/// The requests with the session in one of these places.
#[derive(Serialize, ToSchema)]
#[schema(as = SessionPart)]
#[serde(rename_all = "camelCase")]
struct Part {
    kept_in: KeptIn,
    outcome: Outcome,
    /// In the order in which they were sent; the last two ask each instance who the user is.
    requests: Vec<Exchange>,
}

/// Where a session is kept.
#[derive(Clone, Copy, Serialize, ToSchema)]
#[schema(as = SessionPlace)]
#[serde(rename_all = "kebab-case")]
enum KeptIn {
    /// In the memory of the instance that the user signed in at.
    Memory,
    /// In Redis, which all instances share.
    Redis,
}

/// What came of it.
#[derive(Serialize, ToSchema)]
#[schema(as = SessionOutcome)]
#[serde(rename_all = "kebab-case")]
enum Outcome {
    /// Both instances know the user.
    Holds,
    /// The first instance knows the user, the second answers 401.
    Lost,
    /// Anything else, such as an instance that does not answer.
    Unclear,
}

/// A request and its answer.
#[derive(Serialize, ToSchema)]
#[schema(as = SessionRequest)]
#[serde(rename_all = "camelCase")]
struct Exchange {
    /// `code`, `read-code`, `sign-in` or `me`.
    step: &'static str,
    /// Method and path.
    request: String,
    /// The header that carries the session's token.
    #[serde(skip_serializing_if = "Option::is_none")]
    carries: Option<&'static str>,
    /// The instance, by the name that it gave in its reply.
    node: String,
    /// The HTTP status; none where there was no complete reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    /// The reply's code, where it was a refusal.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<String>,
    took_ms: f64,
}

/// What the next request needs of an answer.
struct Answer {
    headers: HeaderMap,
    data: Value,
}

/// Plays the story at `first`, where the user signs in, and `second`.
///
/// # Errors
/// [`Error::LabFault`] where the sign-in fails. What becomes of the questions is told, whatever it is.
pub(super) async fn play(first: &Target, second: &Target) -> Result<SessionStory, Error> {
    let phone = phones::distinct(1, &mut rand::rng()).pop().unwrap_or_default();
    let mut parts = Vec::new();
    for kept_in in [KeptIn::Memory, KeptIn::Redis] {
        parts.push(play_part(kept_in, &phone, first, second).await?);
    }
    Ok(SessionStory { parts })
}

async fn play_part(
    kept_in: KeptIn,
    phone: &str,
    first: &Target,
    second: &Target,
) -> Result<Part, Error> {
    let mut told = Vec::new();
    let code = Call::post(format!("/user/code?phone={phone}"));
    accepted(&mut told, send("code", first, code).await)?;
    let read = send("read-code", first, Call::get(format!("/lab/code/{phone}"))).await;
    let code = accepted(&mut told, read)?.data;

    let (path, header): (_, HeaderName) = match kept_in {
        KeptIn::Memory => ("/lab/login", COOKIE),
        KeptIn::Redis => ("/user/login", AUTHORIZATION),
    };
    let call = Call::post(path).json(&json!({"phone": phone, "code": code}));
    let Answer { headers, data } = accepted(&mut told, send("sign-in", first, call).await)?;
    let token = match kept_in {
        KeptIn::Memory => cookie(&headers),
        KeptIn::Redis => data.as_str().and_then(|token| HeaderValue::from_str(token).ok()),
    };
    let token = token.ok_or_else(|| Error::LabFault("the sign-in gave no token".to_owned()))?;

    let mut statuses = Vec::new();
    for instance in [first, second] {
        let call = Call::get("/user/me").header(header.clone(), token.clone());
        let (exchange, _) = send("me", instance, call).await;
        statuses.push(exchange.status);
        told.push(exchange);
    }
    let outcome = match statuses[..] {
        [Some(200), Some(200)] => Outcome::Holds,
        [Some(200), Some(401)] => Outcome::Lost,
        _ => Outcome::Unclear,
    };
    Ok(Part { kept_in, outcome, requests: told })
}

/// Records the exchange; its answer, where it was a success.
fn accepted(
    told: &mut Vec<Exchange>,
    (exchange, answer): (Exchange, Option<Answer>),
) -> Result<Answer, Error> {
    let Exchange { request, node, status, code, .. } = &exchange;
    let status = status.map_or("no reply".to_owned(), |status| status.to_string());
    let refused = || {
        let code = code.as_deref().unwrap_or_default();
        Error::LabFault(format!("signing in: {request} at {node}: {status} {code}"))
    };
    let answer = answer.ok_or_else(refused)?;
    told.push(exchange);
    Ok(answer)
}

/// Sends a request on a connection of its own; with the answer where that was a success.
async fn send(step: &'static str, to: &Target, call: Call) -> (Exchange, Option<Answer>) {
    // The reply then names its instance.
    let call = call.header(TRACE, HeaderValue::from_static("1"));
    let carries: [(HeaderName, _); 2] = [(COOKIE, "cookie"), (AUTHORIZATION, "authorization")];
    let carries = carries.into_iter().find(|(name, _)| call.headers.contains_key(name));
    let begun = Instant::now();
    let sent = Connection::new(to.clone(), LIMIT).send(&call).await;
    let mut exchange = Exchange {
        step,
        request: format!("{} {}", call.method, call.path),
        carries: carries.map(|(_, name)| name),
        node: to.authority(),
        status: None,
        code: None,
        took_ms: begun.elapsed().as_secs_f64() * 1e3,
    };
    let Ok(response) = sent else { return (exchange, None) };
    exchange.status = Some(response.status);
    if let Some(trace) = response.trace().and_then(Trace::read) {
        exchange.node = trace.node;
    }
    let envelope: Option<Envelope<Value>> = serde_json::from_slice(&response.body).ok();
    let Some(Envelope { success, code, data, .. }) = envelope else { return (exchange, None) };
    exchange.code = code;
    let answer = Answer { headers: response.headers, data: data.unwrap_or_default() };
    (exchange, success.then_some(answer))
}

/// The cookie that a reply sets, as the next request sends it.
fn cookie(headers: &HeaderMap) -> Option<HeaderValue> {
    let text = headers.get(SET_COOKIE)?.to_str().ok()?;
    HeaderValue::from_str(text.split(';').next()?).ok()
}
