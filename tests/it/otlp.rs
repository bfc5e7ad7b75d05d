//! OpenTelemetry spans as a collector receives them; only with `--features otlp`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::routing::post;
use tokio_util::task::AbortOnDropHandle;

use crate::support::api;
use crate::support::stack::Stack;

/// A collector that keeps what is posted to `/v1/traces`.
struct Collector {
    url: String,
    got: Arc<Mutex<Vec<Bytes>>>,
    _serving: AbortOnDropHandle<()>,
}

impl Collector {
    async fn start() -> Self {
        let got = Arc::<Mutex<Vec<Bytes>>>::default();
        let kept = got.clone();
        let keep = async move |body: Bytes| {
            kept.lock().unwrap_or_else(PoisonError::into_inner).push(body);
        };
        let router = Router::new().route("/v1/traces", post(keep));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Collector { url, got, _serving: AbortOnDropHandle::new(serving) }
    }

    fn spans(&self) -> Vec<Span> {
        let got = self.got.lock().unwrap_or_else(PoisonError::into_inner);
        let mut spans = Vec::new();
        // ExportTraceServiceRequest.resource_spans = 1; ResourceSpans.resource = 1, .scope_spans = 2;
        // ScopeSpans.spans = 2: opentelemetry/proto/trace/v1/trace.proto.
        for resource_spans in got.iter().flat_map(|body| under(body, 1)) {
            let resource = under(resource_spans, 1).flat_map(|resource| attributes(resource, 1));
            let resource: BTreeMap<String, String> = resource.collect();
            for scope_spans in under(resource_spans, 2) {
                spans.extend(under(scope_spans, 2).map(|span| Span::read(span, &resource)));
            }
        }
        spans
    }
}

/// The parts of a span that are tested.
#[derive(Debug)]
struct Span {
    trace: String,
    parent: String,
    name: String,
    attributes: BTreeMap<String, String>,
    events: Vec<(String, BTreeMap<String, String>)>,
    resource: BTreeMap<String, String>,
}

impl Span {
    fn read(bytes: &[u8], resource: &BTreeMap<String, String>) -> Self {
        let hex = |number| -> String {
            under(bytes, number).flatten().map(|byte| format!("{byte:02x}")).collect()
        };
        let event = |event: &[u8]| (text(event, 2), attributes(event, 3).collect());
        Span {
            trace: hex(1),
            parent: hex(4),
            name: text(bytes, 5),
            attributes: attributes(bytes, 9).collect(),
            events: under(bytes, 11).map(event).collect(),
            resource: resource.clone(),
        }
    }
}

/// The fields of a protobuf message, as (number, bytes); a number's bytes are its decimal text.
fn fields(mut bytes: &[u8]) -> Vec<(u64, std::borrow::Cow<'_, [u8]>)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let (byte, rest) = bytes.split_first().unwrap();
            *bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        value
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let length = match key & 7 {
            0 => {
                let value = varint(&mut bytes).to_string().into_bytes();
                found.push((key >> 3, value.into()));
                continue;
            }
            1 => 8,
            2 => usize::try_from(varint(&mut bytes)).unwrap(),
            5 => 4,
            other => panic!("wire type {other}"),
        };
        let (field, rest) = bytes.split_at(length);
        found.push((key >> 3, field.into()));
        bytes = rest;
    }
    found
}

/// The messages or bytes under a field's number.
fn under(bytes: &[u8], number: u64) -> impl Iterator<Item = &[u8]> {
    fields(bytes).into_iter().filter(move |(found, _)| *found == number).filter_map(|(_, field)| {
        match field {
            std::borrow::Cow::Borrowed(field) => Some(field),
            std::borrow::Cow::Owned(_) => None,
        }
    })
}

fn text(bytes: &[u8], number: u64) -> String {
    String::from_utf8(under(bytes, number).flatten().copied().collect()).unwrap()
}

/// KeyValue.key = 1, .value = 2; AnyValue has one field.
fn attributes(bytes: &[u8], number: u64) -> impl Iterator<Item = (String, String)> {
    under(bytes, number).map(|pair| {
        let value = under(pair, 2).next().unwrap_or_default();
        let value = fields(value).into_iter().next().unwrap().1;
        (text(pair, 1), String::from_utf8_lossy(&value).into_owned())
    })
}

#[tokio::test]
async fn a_purchase_is_a_span_under_its_callers_and_exported_before_the_end() {
    let collector = Collector::start().await;
    let mut stack = Stack::start(0, &[]).await;
    let mut env = stack.env();
    env.push(("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url.clone()));
    // So long that only the end of the process exports.
    env.push(("OTEL_BSP_SCHEDULE_DELAY", "600000".to_owned()));
    stack.add_instance_with(&[], &env).await;
    let sale = stack.publish(5, "reentrant-lock").await;
    let user = &stack.users(1).await[0];
    let path = format!("/voucher-order/seckill/{sale}");
    let (trace, caller) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    let answer = api::post(stack.url(), &path)
        .token(&user.token)
        .header("x-request-id", "the-purchase")
        .header("traceparent", &format!("00-{trace}-{caller}-01"))
        .send()
        .await;
    answer.bought();
    assert!(!answer.headers.contains_key("x-lab-trace"), "the steps were not requested");
    let sent = api::get(stack.url(), "/nothing/here").send().await;
    sent.refused(404, "NOT_FOUND");
    assert!(collector.spans().is_empty(), "exported in batches, not one by one");

    let mut instance = stack.instances.pop().unwrap();
    instance.signal("TERM");
    instance.ended().await;
    let spans = collector.spans();
    let is_ours =
        |span: &&Span| span.attributes.get("request.id").is_some_and(|id| id == "the-purchase");
    let span = spans.iter().find(is_ours).unwrap_or_else(|| panic!("{spans:#?}"));
    assert_eq!((&*span.trace, &*span.parent), (trace, caller));
    assert_eq!(span.name, "POST /voucher-order/seckill/{id}");
    let attributes = [
        ("http.request.method", "POST"),
        ("http.route", "/voucher-order/seckill/{id}"),
        ("url.path", &path),
        ("http.response.status_code", "200"),
    ];
    for (name, value) in attributes {
        assert_eq!(span.attributes.get(name).map(String::as_str), Some(value), "{name}: {span:#?}");
    }
    assert_eq!(span.resource["service.name"], "seckill");
    let events: Vec<&str> = span.events.iter().map(|(name, _)| name.as_str()).collect();
    for step in ["locked", "committed"] {
        assert!(events.contains(&step), "{step}: {events:?}");
    }
    assert!(span.events.iter().all(|(_, attributes)| attributes.contains_key("took_us")));
    let unknown = spans.iter().find(|span| span.attributes["url.path"] == "/nothing/here").unwrap();
    assert_eq!((&*unknown.name, &*unknown.parent), ("GET", ""));
    assert_eq!(unknown.attributes["http.response.status_code"], "404");
}

#[tokio::test]
async fn an_unreachable_collector_costs_a_log_line_and_nothing_else() {
    let mut stack = Stack::start(0, &[]).await;
    let mut env = stack.env();
    // Bound and closed again: nothing listens there.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    env.push(("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://127.0.0.1:{port}")));
    env.push(("OTEL_BSP_SCHEDULE_DELAY", "50".to_owned()));
    stack.add_instance_with(&[], &env).await;
    api::get(stack.url(), "/shop-type/list").send().await.data();
    stack.instances[0].wait_for_line("spans could not be exported").await;
    api::get(stack.url(), "/shop-type/list").send().await.data();
}
