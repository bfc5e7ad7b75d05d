//! OpenTelemetry spans. The library queues ended spans, and a thread of its own exports them in batches. The environment
//! configures it, by the names of OpenTelemetry's specification
//! (<https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/>).

use std::env;

use anyhow::Context as _;
use axum::Router;
use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{Span as _, SpanKind, Status, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_otlp::{SpanExporter, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, Span};
use tokio::runtime::Handle;

use super::client::Client;
use crate::request::context::RequestContext;
use crate::request::step_trace::StepTrace;

/// Either of them turns spans on. Unlike in the specification there is no default address: mostly nothing listens there.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];

/// Makes and exports spans. Cheap to clone.
#[derive(Clone, Default)]
pub struct Spans(Option<(SdkTracerProvider, SdkTracer)>);

/// The span of a request under way. Dropped without a reply, because the client hung up, it ends without a status.
pub struct Open {
    span: Span,
    method: String,
}

/// Notes for each request which of these routes it has come to, for the span's name.
pub fn with_routes(router: Router) -> Router {
    router.layer(from_fn(note_route))
}

async fn note_route(request: Request, next: Next) -> Response {
    let trace = RequestContext::with_current(|context| context.trace.clone()).flatten();
    if let (Some(trace), Some(route)) = (trace, request.extensions().get::<MatchedPath>()) {
        trace.note_route(route.as_str());
    }
    next.run(request).await
}

impl Spans {
    /// Spans as the environment configures them; none without an endpoint. `node` names this process. To be called within
    /// a tokio runtime.
    ///
    /// # Errors
    /// Where the environment's values are invalid.
    pub fn from_environment(node: &str) -> anyhow::Result<Self> {
        if ENDPOINTS.iter().all(|name| env::var_os(name).is_none()) {
            return Ok(Spans(None));
        }
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Client(Handle::current()))
            .build()
            .context("cannot export spans as OTEL_EXPORTER_OTLP_... is set")?;
        let mut resource = Resource::builder()
            .with_attribute(KeyValue::new("service.instance.id", node.to_owned()))
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
        if env::var_os("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name("seckill");
        }
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource.build())
            .build();
        let tracer = provider.tracer("seckill");
        Ok(Spans(Some((provider, tracer))))
    }

    /// Begins the span of a request; `None` where there are none.
    pub fn begin(&self, request: &Request, id: &HeaderValue) -> Option<Open> {
        let (_, tracer) = self.0.as_ref()?;
        let parent = TraceContextPropagator::new()
            .extract_with_context(&Context::new(), &HeaderExtractor(request.headers()));
        let method = request.method().as_str();
        let attributes = vec![
            KeyValue::new("http.request.method", method.to_owned()),
            KeyValue::new("url.path", request.uri().path().to_owned()),
            KeyValue::new("request.id", id.to_str().unwrap_or_default().to_owned()),
        ];
        // The route is not known yet: see [`note_route`].
        let span = tracer
            .span_builder(method.to_owned())
            .with_kind(SpanKind::Server)
            .with_attributes(attributes)
            .start_with_context(tracer, &parent);
        Some(Open { span, method: method.to_owned() })
    }

    /// Exports the remaining spans. To be called after the last request.
    pub async fn shutdown(&self) {
        let Some((provider, _)) = self.0.clone() else { return };
        // It waits for the exporting thread, which waits for this runtime.
        match tokio::task::spawn_blocking(move || provider.shutdown()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the last spans may not have been exported"),
            Err(error) => tracing::error!(%error, "exporting the last spans failed"),
        }
    }
}

impl Open {
    /// Ends the span with the reply's status, and the request's steps as events.
    pub fn answered(mut self, status: StatusCode, steps: Option<&StepTrace>) {
        let code = i64::from(status.as_u16());
        self.span.set_attribute(KeyValue::new("http.response.status_code", code));
        if let Some(route) = steps.and_then(StepTrace::route) {
            self.span.update_name(format!("{} {route}", self.method));
            self.span.set_attribute(KeyValue::new("http.route", route.to_owned()));
        }
        if status.is_server_error() {
            self.span.set_status(Status::error(""));
        }
        for (step, at, took) in steps.map(StepTrace::steps).unwrap_or_default() {
            let took = i64::try_from(took.as_micros()).unwrap_or(i64::MAX);
            let mut attributes = vec![KeyValue::new("took_us", took)];
            let saw = step.1.split(',').filter_map(|pair| pair.split_once('='));
            attributes
                .extend(saw.map(|(key, value)| KeyValue::new(key.to_owned(), value.to_owned())));
            self.span.add_event_with_timestamp(step.0, at, attributes);
        }
        self.span.end();
    }
}
