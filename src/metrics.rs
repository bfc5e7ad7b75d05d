//! `GET /metrics`: what the caches and the shared commits did, as Prometheus text. Names are stable; all are counters but
//! those that say otherwise.

use std::fmt::Write;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;

use crate::cache::Cache;
use crate::order::purchase::Purchasing;
use crate::shop::Shops;

/// What is measured.
#[derive(Clone)]
#[allow(missing_docs)] // the parts under their names
pub struct Metrics {
    pub shops: Shops,
    pub cache: Cache,
    pub purchasing: Purchasing,
}

/// `GET /metrics`.
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
        self.groups(&mut text);
        text
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

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    writeln!(text, "{line}").ok();
}
