//! OpenTelemetry spans. The library queues ended spans, and a thread of its own exports them in batches. The environment
//! configures it, by the names of OpenTelemetry's specification
//! (<https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/>).

use std::env;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use async_trait::async_trait;
use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{Span as _, SpanKind, Status, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{Bytes, HeaderExtractor, HttpClient, HttpError};
use opentelemetry_otlp::{SpanExporter, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, Span};
use tokio::runtime::Handle;

use crate::connection::http_post::Endpoint;
use crate::http::middleware::{OpenSpan, Spans};
use crate::request::context::RequestContext;
use crate::request::step_trace::StepTrace;

/// Either of them turns spans on. Unlike in the specification there is no default address: mostly nothing listens there.
const ENDPOINTS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
];

/// Time limit of a batch. A batch that takes longer is dropped: lost spans are acceptable.
const TIMEOUT: Duration = Duration::from_secs(5);

pub(super) async fn note_route(request: Request, next: Next) -> Response {
    let trace = RequestContext::with_current(|context| context.trace.clone()).flatten();
    if let (Some(trace), Some(route)) = (trace, request.extensions().get::<MatchedPath>()) {
        trace.route.get_or_init(|| route.as_str().to_owned());
    }
    next.run(request).await
}

/// Spans that the library exports.
struct Exported {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

/// None without an endpoint.
pub(super) fn from_environment(node: &str) -> anyhow::Result<Option<Arc<dyn Spans>>> {
    if ENDPOINTS.iter().all(|name| env::var_os(name).is_none()) {
        return Ok(None);
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
    Ok(Some(Arc::new(Exported { provider, tracer })))
}

impl Spans for Exported {
    fn begin(&self, request: &Request, id: &HeaderValue) -> OpenSpan {
        let parent = TraceContextPropagator::new()
            .extract_with_context(&Context::new(), &HeaderExtractor(request.headers()));
        let method = request.method().as_str().to_owned();
        let attributes = vec![
            KeyValue::new("http.request.method", method.clone()),
            KeyValue::new("url.path", request.uri().path().to_owned()),
            KeyValue::new("request.id", id.to_str().unwrap_or_default().to_owned()),
        ];
        // The route is not known yet: see [`note_route`].
        let span = self
            .tracer
            .span_builder(method.clone())
            .with_kind(SpanKind::Server);
        let span = span
            .with_attributes(attributes)
            .start_with_context(&self.tracer, &parent);
        Box::new(move |status, steps| end(span, &method, status, steps))
    }

    fn shutdown(&self) {
        if let Err(error) = self.provider.shutdown() {
            tracing::warn!(%error, "the last spans may not have been exported");
        }
    }
}

fn end(mut span: Span, method: &str, status: StatusCode, steps: Option<&StepTrace>) {
    let code = i64::from(status.as_u16());
    span.set_attribute(KeyValue::new("http.response.status_code", code));
    if let Some(route) = steps.and_then(|steps| steps.route.get()) {
        span.update_name(format!("{method} {route}"));
        span.set_attribute(KeyValue::new("http.route", route.to_owned()));
    }
    if status.is_server_error() {
        span.set_status(Status::error(""));
    }
    for (step, at, took) in steps.map(StepTrace::steps).unwrap_or_default() {
        let took = i64::try_from(took.as_micros()).unwrap_or(i64::MAX);
        let mut attributes = vec![KeyValue::new("took_us", took)];
        let saw = step.1.split(',').filter_map(|pair| pair.split_once('='));
        attributes.extend(saw.map(|(key, value)| KeyValue::new(key.to_owned(), value.to_owned())));
        span.add_event_with_timestamp(step.0, at, attributes);
    }
    span.end();
}

/// One POST for each batch, by the client that the service has. Sends on this runtime; the exporting thread has none.
#[derive(Debug)]
struct Client(Handle);

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(
        &self,
        request: http::Request<Bytes>,
    ) -> Result<http::Response<Bytes>, HttpError> {
        let sent = self.0.spawn(post(request)).await;
        let answer = sent.map_err(anyhow::Error::from).and_then(|sent| sent);
        answer
            .inspect_err(|error| {
                let error = format!("{error:#}");
                tracing::warn!(error, "spans could not be exported and are dropped");
            })
            .map_err(Into::into)
    }
}

async fn post(request: http::Request<Bytes>) -> anyhow::Result<http::Response<Bytes>> {
    let (parts, body) = request.into_parts();
    let uri = parts.uri.to_string();
    let endpoint = Endpoint::parse(&uri).with_context(|| format!("the endpoint {uri}"))?;
    let sent = endpoint.post(parts.headers, body, TIMEOUT).await;
    sent.with_context(|| format!("cannot export to {uri}"))?;
    // Only its status, 200, matters to the exporter.
    Ok(http::Response::new(Bytes::new()))
}
