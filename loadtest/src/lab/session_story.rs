//! The story of a session in one node's memory: a user signs in at one instance and asks two of them "who am I?". It is
//! played twice, with the session in that instance's memory and in Redis. Each request is a real one, sent to the
//! instance itself, and is shown with the status of its answer.

use std::time::Duration;

use axum::http::header::{AUTHORIZATION, COOKIE, SET_COOKIE};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use rand::Rng;
use serde::Serialize;
use serde_json::{Value, json};
use workload::Target;
use workload::http::{Call, Connection, TRACE};
use workload::reply::Envelope;
use workload::trace::Trace;

use super::refusal::Refusal;

/// Time limit of one request. All ten together stay below the default of `--request-timeout-ms`.
const LIMIT: Duration = Duration::from_millis(2_500);

/// A request, and how it was answered.
#[derive(Serialize)]
struct Exchange {
    /// `code`, `read-code`, `sign-in` or `me`.
    step: &'static str,
    /// Method and path.
    request: String,
    /// The header that carries the session's token.
    #[serde(skip_serializing_if = "Option::is_none")]
    carries: Option<String>,
    /// The instance, by the name that it gave in its reply.
    node: String,
    /// The HTTP status; none where there was no reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
}

/// Plays the story at `first`, where the user signs in, and `second`.
///
/// # Errors
/// A [`Refusal`] if a sign-in fails. A "who am I?" that fails is part of the story and no error.
pub(super) async fn play(first: &Target, second: &Target) -> Result<Value, Refusal> {
    // Every prefix of 130 to 139 is in use.
    let phone = format!("13{:09}", rand::rng().random_range(0..1_000_000_000_u32));
    let in_memory = play_part("memory", "/lab/login", &phone, [first, second]).await?;
    let in_redis = play_part("redis", "/user/login", &phone, [first, second]).await?;
    Ok(json!({ "parts": [in_memory, in_redis] }))
}

/// Plays one part: with the session in the memory of the instance that the user signed in at, or in Redis.
async fn play_part(
    kept_in: &str,
    sign_in: &str,
    phone: &str,
    [first, second]: [&Target; 2],
) -> Result<Value, Refusal> {
    let mut requests = Vec::new();
    let code = Call::post(format!("/user/code?phone={phone}"));
    accepted(&mut requests, send("code", first, code, None).await)?;
    let read = Call::get(format!("/lab/code/{phone}"));
    let (_, code) = accepted(&mut requests, send("read-code", first, read, None).await)?;
    let call = Call::post(sign_in).json(&json!({"phone": phone, "code": code}));
    let (headers, data) = accepted(&mut requests, send("sign-in", first, call, None).await)?;
    let cookie = headers
        .get(SET_COOKIE)
        .and_then(|set| set.to_str().ok()?.split(';').next());
    let token = match cookie {
        Some(cookie) => (COOKIE, cookie),
        None => (AUTHORIZATION, data.as_str().unwrap_or_default()),
    };
    let mut statuses = Vec::new();
    for instance in [first, second] {
        let question = Call::get("/user/me");
        let (exchange, _) = send("me", instance, question, Some(token.clone())).await;
        statuses.push(exchange.status);
        requests.push(exchange);
    }
    let outcome = match statuses[..] {
        [Some(200), Some(200)] => "holds",
        [Some(200), Some(401)] => "lost",
        // Such as an instance that does not answer.
        _ => "unclear",
    };
    Ok(json!({ "keptIn": kept_in, "outcome": outcome, "requests": requests }))
}

/// What the next request needs of an answer: the headers, and the data.
type Answer = (HeaderMap, Value);

/// Records the exchange and returns its answer, or refuses the story if it was no success.
fn accepted(
    requests: &mut Vec<Exchange>,
    (exchange, answer): (Exchange, Option<Answer>),
) -> Result<Answer, Refusal> {
    let Exchange {
        request,
        node,
        status,
        ..
    } = &exchange;
    let Some(answer) = answer else {
        return Err(Refusal::failed(format!(
            "signing in: {request} at {node}: {status:?}"
        )));
    };
    requests.push(exchange);
    Ok(answer)
}

/// Sends a request on a connection of its own. The answer is returned only if it was a success.
async fn send(
    step: &'static str,
    target: &Target,
    call: Call,
    token: Option<(HeaderName, &str)>,
) -> (Exchange, Option<Answer>) {
    let request = format!("{} {}", call.method, call.path);
    let carries = token.as_ref().map(|(header, _)| header.to_string());
    // The reply then names its instance.
    let mut call = call.header(TRACE, HeaderValue::from_static("1"));
    if let Some((header, token)) = token {
        call = call.header(
            header,
            HeaderValue::from_str(token).unwrap_or(HeaderValue::from_static("")),
        );
    }
    let mut exchange = Exchange {
        step,
        request,
        carries,
        node: target.authority(),
        status: None,
    };
    let Ok(response) = Connection::new(target.clone(), LIMIT).send(&call).await else {
        return (exchange, None);
    };
    exchange.status = Some(response.status);
    if let Some(trace) = response.trace().and_then(Trace::read) {
        exchange.node = trace.node;
    }
    let envelope: Option<Envelope<Value>> = serde_json::from_slice(&response.body).ok();
    let data = envelope
        .filter(|envelope| envelope.success)
        .map(|envelope| envelope.data.unwrap_or_default());
    (exchange, data.map(|data| (response.headers, data)))
}
