//! OpenTelemetry spans as a collector receives them; only with `--features otlp`.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;

use crate::support::api;
use crate::support::receiver::Receiver;
use crate::support::stack::Stack;

/// The spans that a collector got, each with its resource's attributes.
fn spans(collector: &Receiver) -> Vec<(Span, BTreeMap<String, String>)> {
    let got = collector.since(0).into_iter();
    let requests = got.map(|(_, body)| ExportTraceServiceRequest::decode(body).unwrap());
    let mut spans = Vec::new();
    for resource_spans in requests.flat_map(|request| request.resource_spans) {
        let resource = texts(&resource_spans.resource.unwrap().attributes);
        let found = resource_spans
            .scope_spans
            .into_iter()
            .flat_map(|scope_spans| scope_spans.spans);
        spans.extend(found.map(|span| (span, resource.clone())));
    }
    spans
}

fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |pair: &KeyValue| match pair.value.clone()?.value? {
        Value::StringValue(text) => Some((pair.key.clone(), text)),
        Value::IntValue(number) => Some((pair.key.clone(), number.to_string())),
        _ => None,
    };
    attributes.iter().filter_map(text).collect()
}

#[tokio::test]
async fn a_purchase_is_a_span_below_its_callers_and_is_exported_before_the_process_ends() {
    let collector = Receiver::start().await;
    let mut stack = Stack::start(0, &[]).await;
    let mut env = stack.env();
    env.push(("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url()));
    // So long that only the end of the process exports.
    env.push(("OTEL_BSP_SCHEDULE_DELAY", "600000".to_owned()));
    stack.add_instance_with(&[], &env).await;
    let sale = stack.publish(5, "reentrant-lock").await;
    let user = &stack.users(1).await[0];
    let path = format!("/voucher-order/seckill/{sale}");
    let trace = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736_u128;
    let caller = 0x00f0_67aa_0ba9_02b7_u64;
    let answer = stack
        .purchase(user, sale)
        .header("x-request-id", "the-purchase")
        .header("traceparent", &format!("00-{trace:032x}-{caller:016x}-01"))
        .send()
        .await;
    answer.bought();
    assert!(
        !answer.headers.contains_key("x-lab-trace"),
        "the steps were not requested"
    );
    let sent = api::get(stack.url(), "/nothing/here").send().await;
    sent.refused(404, "NOT_FOUND");
    assert_eq!(collector.count(), 0, "exported in batches, not one by one");

    stack.instances.pop().unwrap().stop().await;
    let spans = spans(&collector);
    let find = |name: &str, value: &str| {
        spans
            .iter()
            .find(|(span, _)| {
                texts(&span.attributes)
                    .get(name)
                    .is_some_and(|text| text == value)
            })
            .unwrap_or_else(|| panic!("{value}: {spans:#?}"))
    };
    let (span, resource) = find("request.id", "the-purchase");
    assert_eq!(span.trace_id, trace.to_be_bytes());
    assert_eq!(span.parent_span_id, caller.to_be_bytes());
    assert_eq!(span.name, "POST /voucher-order/seckill/{id}");
    for (name, value) in [
        ("http.request.method", "POST"),
        ("http.route", "/voucher-order/seckill/{id}"),
        ("url.path", &path),
        ("http.response.status_code", "200"),
    ] {
        assert_eq!(texts(&span.attributes)[name], value, "{span:#?}");
    }
    assert_eq!(resource["service.name"], "seckill");
    for step in ["locked", "committed"] {
        assert!(
            span.events.iter().any(|event| event.name == step),
            "{step}: {span:#?}"
        );
    }
    assert!(
        span.events
            .iter()
            .all(|event| texts(&event.attributes).contains_key("took_us"))
    );
    let (unknown, _) = find("url.path", "/nothing/here");
    assert_eq!(
        (unknown.name.as_str(), unknown.parent_span_id.len()),
        ("GET", 0)
    );
    assert_eq!(
        texts(&unknown.attributes)["http.response.status_code"],
        "404"
    );
}

#[tokio::test]
async fn an_unreachable_collector_costs_a_log_line_and_nothing_else() {
    let mut stack = Stack::start(0, &[]).await;
    let mut env = stack.env();
    // Bound and closed again: nothing listens there.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    env.push((
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        format!("http://127.0.0.1:{port}"),
    ));
    env.push(("OTEL_BSP_SCHEDULE_DELAY", "50".to_owned()));
    stack.add_instance_with(&[], &env).await;
    api::get(stack.url(), "/shop-type/list").send().await.data();
    stack.instances[0]
        .wait_for_line("spans could not be exported")
        .await;
    api::get(stack.url(), "/shop-type/list").send().await.data();
}
