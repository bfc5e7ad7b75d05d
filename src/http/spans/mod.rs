//! OpenTelemetry spans: one per request, exported by OTLP, with the cargo feature `otlp` and where an endpoint is set. In
//! every other build all of this is empty and costs nothing; for the reason see [`context`](crate::request::context).
//!
//! A span has the request's method, route, path, status and id; its parent is the caller's, by the header
//! `traceparent`; its events are the request's steps ([`step_trace`](crate::request::step_trace)).

#[cfg(feature = "otlp")]
mod client;
#[cfg(feature = "otlp")]
mod otlp;

#[cfg(feature = "otlp")]
pub use otlp::{Open, Spans, with_routes};

#[cfg(not(feature = "otlp"))]
mod none {
    use axum::Router;
    use axum::extract::Request;
    use axum::http::{HeaderValue, StatusCode};

    use crate::request::step_trace::StepTrace;

    /// Nothing to add.
    pub fn with_routes(router: Router) -> Router {
        router
    }

    /// No spans.
    #[derive(Clone, Default)]
    pub struct Spans(());

    /// No span; never made.
    pub enum Open {}

    impl Spans {
        /// None.
        pub fn from_environment(_node: &str) -> anyhow::Result<Self> {
            Ok(Spans(()))
        }

        /// None.
        pub fn begin(&self, _request: &Request, _id: &HeaderValue) -> Option<Open> {
            None
        }

        /// Nothing to export.
        pub async fn shutdown(&self) {}
    }

    impl Open {
        /// Never called.
        pub fn answered(self, _status: StatusCode, _steps: Option<&StepTrace>) {
            match self {}
        }
    }
}

#[cfg(not(feature = "otlp"))]
pub use none::{Open, Spans, with_routes};
