//! What every request passes around the route table: request id, time limit, step trace, span, `connection: close` once
//! the listener is closed, and the reply to a panic. One `async fn` around the router and not layers in it: a layer is
//! cloned and boxed with the route for each request, some ten allocations in all.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use tower::Service;

use crate::error::{Cause, Error};
use crate::http::reply::{failure, json};
use crate::request::context::RequestContext;
use crate::request::panic::Panic;
use crate::request::step_trace::{StepTrace, TRACE_HEADER};

/// The header that carries the request's id, in and out.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Makes and exports spans.
pub trait Spans: Send + Sync {
    /// Begins the span of a request under this id.
    fn begin(&self, request: &Request, id: &HeaderValue) -> OpenSpan;

    /// Exports the remaining spans. To be called after the last request, where it may block.
    fn shutdown(&self);
}

/// Ends a span with the reply's status, and the request's steps as events. If it is dropped without a reply, the span ends
/// without a status.
pub type OpenSpan = Box<dyn FnOnce(StatusCode, Option<&StepTrace>) + Send>;

/// The statuses by which replies are counted.
const STATUSES: [&str; 5] = ["2xx", "4xx", "500", "503", "other"];

/// Counts replies by their status.
#[derive(Debug, Default)]
pub struct ReplyCounts([AtomicU64; STATUSES.len()]);

impl ReplyCounts {
    fn count(&self, status: StatusCode) {
        let place = match status.as_u16() {
            200..=299 => 0,
            400..=499 => 1,
            500 => 2,
            503 => 3,
            _ => 4,
        };
        self.0[place].fetch_add(1, Relaxed);
    }

    /// How many replies had each status.
    pub fn by_status(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.0.iter().map(|count| count.load(Relaxed));
        STATUSES.into_iter().zip(counts)
    }
}

/// The settings of [`per_request`].
pub struct RequestPolicy {
    /// Longest time one request may take before it is answered 503. A purchase answers itself before that.
    pub timeout: Duration,
    /// True once the server accepts no connections any more.
    pub closing: AtomicBool,
    /// This node's name, where clients may ask for a request's steps.
    pub traced_as: Option<Arc<str>>,
    /// Spans of requests; none in most builds.
    pub spans: Option<Arc<dyn Spans>>,
    /// Counts what is answered.
    pub replies: Arc<ReplyCounts>,
}

/// Answers a request by the route table.
pub async fn per_request(policy: &RequestPolicy, mut routes: Router, request: Request) -> Response {
    let id = request_id(&request);
    let traced_as = policy
        .traced_as
        .as_ref()
        .filter(|_| request.headers().contains_key(TRACE_HEADER))
        .cloned();
    let is_trace_wanted = traced_as.is_some();
    let span = policy
        .spans
        .as_ref()
        .map(|spans| spans.begin(&request, &id));
    // For a span the steps are recorded, too: they are its events.
    let node = traced_as.or_else(|| span.is_some().then(Arc::default));
    let trace = node.map(|node| Arc::new(StepTrace::begin(node)));
    let context = RequestContext {
        id: id.clone(),
        method: request.method().clone(),
        uri: request.uri().clone(),
        trace: trace.clone(),
    };
    // A write that has not answered in time may go on, or may be done already.
    let timeout_error = if request.method().is_safe() {
        Error::Unavailable(Cause::TimeLimit)
    } else {
        Error::OutcomeUnknown(None)
    };
    let started = Instant::now();
    let answer = async {
        let routed = AssertUnwindSafe(routes.call(request)).catch_unwind();
        let response = match tokio::time::timeout(policy.timeout, routed).await {
            Ok(Ok(Ok(response))) => response,
            Ok(Ok(Err(never))) => match never {},
            Ok(Err(panic)) => Error::from(Panic::from(panic)).into_response(),
            Err(_) => timeout_error.into_response(),
        };
        tracing::debug!(
            status = response.status().as_u16(),
            elapsed_us = started.elapsed().as_micros() as u64,
            "answered"
        );
        response
    };
    let mut response = context.scope(answer).await;

    if response.status() == StatusCode::INTERNAL_SERVER_ERROR {
        // No detail leaves the process; the request's id leads an operator to the log line that has it.
        let envelope = failure("INTERNAL", "服务器内部错误".to_owned(), None)
            .with_request_id(id.to_str().unwrap_or_default());
        response = json(envelope.to_bytes());
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    }
    policy.replies.count(response.status());
    response.headers_mut().insert(REQUEST_ID, id);
    if let Some(span) = span {
        span(response.status(), trace.as_deref());
    }
    if let Some(trace) = trace.filter(|_| is_trace_wanted) {
        response.headers_mut().insert(TRACE_HEADER, trace.header());
    }
    if policy.closing.load(Relaxed) {
        response
            .headers_mut()
            .insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// The id that the request came with, where it is short and printable, else a new one.
fn request_id(request: &Request) -> HeaderValue {
    let given = request.headers().get(REQUEST_ID).filter(|value| {
        let bytes = value.as_bytes();
        (1..=64).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
    });
    given
        .cloned()
        .unwrap_or_else(|| HeaderValue::from(rand::random::<u64>()))
}

#[cfg(test)]
mod tests {
    use axum::routing::get;

    use super::*;

    fn policy() -> RequestPolicy {
        RequestPolicy {
            timeout: Duration::from_secs(30),
            closing: AtomicBool::new(false),
            traced_as: None,
            spans: None,
            replies: Arc::default(),
        }
    }

    /// Each connection keeps room for the future of a request, which is moved there.
    #[test]
    fn a_request_is_small_enough_to_be_moved() {
        let policy = policy();
        let bytes = size_of_val(&per_request(&policy, Router::new(), Request::default()));
        assert!(bytes < 4096, "{bytes} bytes: is a future held twice?");
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_takes_too_long_has_an_unknown_outcome() {
        let hangs = Router::new().fallback(std::future::pending::<()>);
        for (method, code) in [("GET", "UNAVAILABLE"), ("POST", "OUTCOME_UNKNOWN")] {
            let request = Request::builder()
                .method(method)
                .body(Default::default())
                .unwrap();
            let response = per_request(&policy(), hangs.clone(), request).await;
            assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
            let body = axum::body::to_bytes(response.into_body(), 1000)
                .await
                .unwrap();
            let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(body["code"], code, "{method}");
        }
    }

    #[test]
    fn only_a_short_id_of_printable_characters_is_taken() {
        let id = |given: &[u8]| {
            let request = Request::builder().header(REQUEST_ID, given);
            request_id(&request.body(Default::default()).unwrap())
        };
        let longest = [b'a'; 64];
        for given in [&b"abc-123"[..], &longest] {
            assert_eq!(id(given).as_bytes(), given);
        }
        for given in [&b""[..], b"a b", b"caf\xe9", &[b'a'; 65]] {
            let made = id(given);
            let made = made.to_str().unwrap().parse::<u64>();
            assert!(made.is_ok(), "{given:?}");
        }
    }

    #[tokio::test]
    async fn each_reply_is_counted_under_its_status() {
        let policy = policy();
        let routes = Router::new()
            .route("/well", get(async || "well"))
            .route("/panics", get(async || -> () { panic!("a bug") }))
            .route("/away", get(async || StatusCode::SERVICE_UNAVAILABLE));
        for path in ["/well", "/panics", "/away", "/absent", "/panics"] {
            let request = Request::builder().uri(path).body(Default::default());
            per_request(&policy, routes.clone(), request.unwrap()).await;
        }
        let counts: Vec<_> = policy.replies.by_status().collect();
        let expected = [("2xx", 1), ("4xx", 1), ("500", 2), ("503", 1), ("other", 0)];
        assert_eq!(counts, expected);
    }
}
