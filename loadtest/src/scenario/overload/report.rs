//! The report of an overload.

use std::{collections::BTreeMap, fmt};

use serde::Serialize;

use crate::scenario::check_result::{self, CheckResult, Outcome};
use workload::{latency::Latency, table::render};

/// One load, as the clients saw it.
#[derive(Debug, Clone, Serialize)]
pub struct Load {
    /// Attempts per second that were meant to be made; `None` in a closed loop.
    pub offered_per_s: Option<f64>,
    /// Attempts made.
    pub requests: u64,
    /// Due, but never made, because all connections were busy to the end.
    pub unsent: u64,
    /// Orders per second, by when their answers came, without the warm-up.
    pub orders_per_s: f64,
    /// Attempts that became orders.
    pub accepted: u64,
    /// Attempts that were told to come back later.
    pub refused: u64,
    /// Refusals that did not say when.
    pub without_retry_after: u64,
    /// Attempts of a user whose last one, in another sale, was still under way: too few buyers.
    pub busy: u64,
    /// Everything else: no answer, or one that is neither.
    pub failed: u64,
    /// Attempts by the reply they got.
    pub replies: BTreeMap<String, u64>,
    /// Latency of the orders: from the due time in an open loop.
    pub latency_accepted: Latency,
    /// Latency of the refusals.
    pub latency_refused: Latency,
    /// Largest memory of all instances together, bytes, before and during the load.
    pub memory: Option<(u64, u64)>,
}

/// An overload that was run and checked.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Always `overload`.
    pub scenario: &'static str,
    /// The sales' strategy.
    pub strategy: String,
    /// The base URLs fired at.
    pub targets: Vec<String>,
    /// Buyers.
    pub buyers: usize,
    /// Sales used.
    pub sales: usize,
    /// The open loop's rate as a multiple of the peak.
    pub factor: f64,
    /// The closed loop.
    pub peak: Load,
    /// The open loop.
    pub overload: Load,
    /// Orders per second under overload, as a share of the peak.
    pub goodput: f64,
    /// Violated invariants of the checker, over all sales.
    pub violations: BTreeMap<&'static str, i64>,
    /// The result of the check.
    pub check: CheckResult,
}

impl check_result::Report for Report {
    fn outcome(&self) -> Outcome {
        Outcome::of([&self.check])
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{}: {} buyers, {} sales, to {}; then {} times the peak.\n",
            self.strategy,
            self.buyers,
            self.sales,
            self.targets.join(", "),
            self.factor
        )?;
        let columns = [
            "load",
            ">offered/s",
            ">orders/s",
            ">accepted",
            ">refused",
            ">failed",
            ">unsent",
            ">p50 ms",
            ">p99 ms",
            ">p99.9 ms",
            ">refused p50",
            ">refused p99",
            ">memory MB",
        ];
        let rows = [row("peak", &self.peak), row("overload", &self.overload)];
        writeln!(f, "{}", render(&columns, &rows))?;
        for (code, count) in &self.overload.replies {
            writeln!(f, "  {code} {count}")?;
        }
        writeln!(
            f,
            "\nLatency counts from the due time. {:.2} of the peak's orders per second got through.",
            self.goodput
        )?;
        write!(f, "{}", self.check.verdict())
    }
}

fn row(name: &str, load: &Load) -> Vec<String> {
    let ms = |value: f64| format!("{value:.1}");
    let memory = load
        .memory
        .map_or("?".to_owned(), |(before, most)| format!("{} → {}", before >> 20, most >> 20));
    vec![
        name.to_owned(),
        load.offered_per_s.map_or("closed".to_owned(), |rate| format!("{rate:.0}")),
        format!("{:.0}", load.orders_per_s),
        load.accepted.to_string(),
        load.refused.to_string(),
        load.failed.to_string(),
        load.unsent.to_string(),
        ms(load.latency_accepted.p50_ms),
        ms(load.latency_accepted.p99_ms),
        ms(load.latency_accepted.p999_ms),
        ms(load.latency_refused.p50_ms),
        ms(load.latency_refused.p99_ms),
        memory,
    ]
}
