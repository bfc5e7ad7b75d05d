//! `GET /metrics`: what purchases were told, and what the caches, the shared commits and the stream did, as
//! Prometheus text. Names are stable and carry their units.

use std::fmt::Write;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;

use crate::cache::Cache;
use crate::http::admission::Admission;
use crate::order::purchase::Purchasing;
use crate::shop::Shops;

/// What is measured.
#[derive(Clone)]
#[allow(missing_docs)] // the parts under their names
pub struct Metrics {
    pub shops: Shops,
    pub cache: Cache,
    pub purchasing: Purchasing,
    pub admission: Admission,
}

/// What was measured, as Prometheus text.
#[utoipa::path(
    get, path = "/metrics", tag = "service",
    responses((
        status = 200, body = String, content_type = "text/plain", description = "Counters, gauges, histograms."
    )),
)]
pub async fn get(State(metrics): State<Metrics>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], metrics.text())
}

impl Metrics {
    fn text(&self) -> String {
        let mut text = String::new();
        let policies = self.shops.stats();
        let names: Vec<&str> = policies[0].1.named().iter().map(|(name, _)| *name).collect();
        for (at, name) in names.iter().enumerate() {
            let name = format!("cache_{name}_total");
            line(&mut text, format_args!("# TYPE {name} counter"));
            for (cache, stats) in &policies {
                let value = stats.named()[at].1;
                line(&mut text, format_args!("{name}{{cache=\"{cache}\"}} {value}"));
            }
        }
        let stats = self.cache.stats();
        for (name, value) in stats.counts.named() {
            line(&mut text, format_args!("# TYPE cache_{name}_total counter"));
            line(&mut text, format_args!("cache_{name}_total {value}"));
        }
        for (name, value) in [
            ("cache_retries_pending", stats.retries_pending),
            ("cache_breaker_open", u64::from(stats.breaker_open)),
            ("cache_local_trusted", u64::from(stats.local_trusted)),
            ("cache_local_entries", stats.local_entries),
            ("cache_loads_running", stats.loads_running),
        ] {
            line(&mut text, format_args!("# TYPE {name} gauge"));
            line(&mut text, format_args!("{name} {value}"));
        }
        self.purchases(&mut text);
        self.groups(&mut text);
        self.stream(&mut text);
        self.admission(&mut text);
        resident_memory(&mut text);
        text
    }

    /// Purchases by strategy and outcome, and how long they took.
    fn purchases(&self, text: &mut String) {
        let counts: Vec<_> = self.purchasing.stats().of_strategies().collect();
        line(text, format_args!("# TYPE purchases_total counter"));
        for (strategy, counts) in &counts {
            for (outcome, count) in &counts.outcomes {
                let outcome = outcome.to_lowercase();
                let labels = format_args!("strategy=\"{strategy}\",outcome=\"{outcome}\"");
                line(text, format_args!("purchases_total{{{labels}}} {count}"));
            }
        }
        let name = "purchase_duration_seconds";
        line(text, format_args!("# TYPE {name} histogram"));
        for (strategy, counts) in &counts {
            let of = format_args!("strategy=\"{strategy}\"");
            for (bound, count) in &counts.within {
                line(text, format_args!("{name}_bucket{{{of},le=\"{bound}\"}} {count}"));
            }
            let (count, seconds) = counts.total;
            line(text, format_args!("{name}_bucket{{{of},le=\"+Inf\"}} {count}"));
            line(text, format_args!("{name}_sum{{{of}}} {seconds}"));
            line(text, format_args!("{name}_count{{{of}}} {count}"));
        }
    }

    /// The stream of admitted orders.
    fn stream(&self, text: &mut String) {
        let stats = self.purchasing.stream_stats();
        for (name, value) in stats.counters() {
            line(text, format_args!("# TYPE {name} counter"));
            line(text, format_args!("{name} {value}"));
        }
        for (name, value) in stats.gauges() {
            line(text, format_args!("# TYPE {name} gauge"));
            line(text, format_args!("{name} {value}"));
        }
    }

    /// Who was let in, and who was not.
    fn admission(&self, text: &mut String) {
        line(text, format_args!("# TYPE purchases_in_flight gauge"));
        line(text, format_args!("purchases_in_flight {}", self.admission.in_flight()));
        line(text, format_args!("# TYPE purchases_refused_total counter"));
        for (reason, count) in self.admission.refused() {
            line(text, format_args!("purchases_refused_total{{reason=\"{reason}\"}} {count}"));
        }
    }

    /// Batches of group commit as a histogram of their sizes.
    fn groups(&self, text: &mut String) {
        let stats = self.purchasing.group_stats();
        line(text, format_args!("# TYPE group_splits_total counter"));
        line(text, format_args!("group_splits_total {}", stats.splits()));
        line(text, format_args!("# TYPE group_batch_orders histogram"));
        for (bound, count) in stats.up_to() {
            line(text, format_args!("group_batch_orders_bucket{{le=\"{bound}\"}} {count}"));
        }
        let (batches, orders) = (stats.batches(), stats.orders());
        line(text, format_args!("group_batch_orders_bucket{{le=\"+Inf\"}} {batches}"));
        line(text, format_args!("group_batch_orders_sum {orders}"));
        line(text, format_args!("group_batch_orders_count {batches}"));
    }
}

/// What this process occupies, in bytes, under the name that Prometheus' own libraries use; absent where
/// the system is not Linux.
fn resident_memory(text: &mut String) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes =
        resident.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    if let Some(kilobytes) = kilobytes {
        line(text, format_args!("# TYPE process_resident_memory_bytes gauge"));
        line(text, format_args!("process_resident_memory_bytes {}", kilobytes * 1024));
    }
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    writeln!(text, "{line}").ok();
}
