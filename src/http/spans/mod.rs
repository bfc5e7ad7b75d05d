//! OpenTelemetry spans: one per request, exported by OTLP. They exist only with the cargo feature `otlp` and where an endpoint
//! is set, and otherwise cost nothing. [`context`](crate::request::context) says what a span would cost.
//!
//! A span has the request's method, route, path, status and id; its parent is the caller's, by the header
//! `traceparent`; its events are the request's steps ([`step_trace`](crate::request::step_trace)).

use std::sync::Arc;

use axum::Router;

use super::middleware::Spans;

#[cfg(feature = "otlp")]
mod otlp;

/// Spans as the environment configures them, for this node. To be called within a tokio runtime.
#[cfg_attr(not(feature = "otlp"), allow(unused_variables))]
pub fn from_environment(node: &str) -> anyhow::Result<Option<Arc<dyn Spans>>> {
    #[cfg(feature = "otlp")]
    return otlp::from_environment(node);
    #[cfg(not(feature = "otlp"))]
    Ok(None)
}

/// Notes for each request which of these routes it has come to, for the span's name.
pub fn with_routes(router: Router) -> Router {
    #[cfg(feature = "otlp")]
    let router = router.layer(axum::middleware::from_fn(otlp::note_route));
    router
}
