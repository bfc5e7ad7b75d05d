//! The report of a rolling restart.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use super::balancer::Balancer;
use crate::report::{Check, Checked, Table};
use workload::{generator::Record, latency::Latency};

/// Seconds with failures that are named.
const SHOWN: usize = 12;

/// What was seen behind one balancer.
pub struct Behind {
    /// The balancer.
    pub balancer: Balancer,
    /// Orders per second in a closed loop; `None` where the rate was given.
    pub capacity: Option<f64>,
    /// Purchases per second during the restarts.
    pub rate: f64,
    /// How long each instance took to end, the longest last.
    pub drains: Vec<Duration>,
    /// Purchases made meanwhile.
    pub requests: u64,
    /// Those that did not become orders, by the reply they got and the second in which they were due.
    pub failed: BTreeMap<String, BTreeMap<u64, usize>>,
    /// Latency of all of them.
    pub latency: Latency,
    /// Violated invariants of the checker.
    pub violations: BTreeMap<&'static str, i64>,
    /// Whether the tables stood still in the end.
    pub unchanged: bool,
    /// Whether there was a buyer for each purchase.
    pub buyers_left: bool,
}

impl Behind {
    /// Its checks, after `restarts` of instances.
    pub fn checks(&self, restarts: usize) -> Vec<Check> {
        let what = |what: &str| format!("{}: {what}", self.balancer);
        let yes = |what: String, holds: bool| {
            Check::new(what, if holds { "yes" } else { "no" }, "yes", holds).needed()
        };
        let failed: usize = self.failed.values().flat_map(BTreeMap::values).sum();
        let drained = self.drains.len();
        let mut checks = vec![
            Check::none(what("purchases that failed"), failed as u64),
            Check::new(what("restarts"), drained, restarts, drained == restarts).needed(),
            Check::new(what("purchases"), self.requests, "at least 1", self.requests > 0).needed(),
            yes(what("buyers for all (else more --buyers)"), self.buyers_left),
            yes(what("tables stand still"), self.unchanged),
        ];
        let violations = self.violations.iter();
        checks.extend(violations.map(|(name, count)| Check::new(what(name), count, 0, false)));
        checks
    }

    fn cells(&self) -> Vec<String> {
        let ms = |value: f64| format!("{value:.1}");
        let drain = |at: usize| self.drains.get(at).map_or(0, Duration::as_millis).to_string();
        vec![
            self.balancer.to_string(),
            self.capacity.map_or("–".to_owned(), |rate| format!("{rate:.0}")),
            format!("{:.0}", self.rate),
            drain(self.drains.len() / 2),
            drain(self.drains.len().saturating_sub(1)),
            self.requests.to_string(),
            ms(self.latency.p50_ms),
            ms(self.latency.p99_ms),
            ms(self.latency.max_ms),
        ]
    }

    /// A line for each reply that was no order.
    fn failures(&self) -> impl Iterator<Item = String> {
        self.failed.iter().map(|(reply, seconds)| {
            let count: usize = seconds.values().sum();
            let shown =
                seconds.iter().take(SHOWN).map(|(second, count)| format!("{second} ({count})"));
            let shown = shown.collect::<Vec<_>>().join(", ");
            let more = if seconds.len() > SHOWN { ", …" } else { "" };
            format!("{}: {reply} {count}, in seconds {shown}{more}", self.balancer)
        })
    }
}

/// The purchases that did not become orders, by the reply that they got and the second in which they were due.
pub fn failures(records: &[Record]) -> BTreeMap<String, BTreeMap<u64, usize>> {
    let mut failed: BTreeMap<String, BTreeMap<u64, usize>> = BTreeMap::new();
    for record in records.iter().filter(|record| !record.observed.reply.is_success()) {
        let label = record.observed.reply.label().to_owned();
        *failed.entry(label).or_default().entry(record.due.as_secs()).or_default() += 1;
    }
    failed
}

/// What was seen behind all balancers, with `restarts` each; the servers' logs are in `logs` where they were kept.
pub fn report(
    heading: String,
    behind: &[Behind],
    restarts: usize,
    logs: Option<PathBuf>,
) -> Checked {
    let columns = [
        "behind",
        ">capacity/s",
        ">load/s",
        ">drain ms",
        ">longest",
        ">purchases",
        ">p50 ms",
        ">p99 ms",
        ">max ms",
    ];
    let mut notes: Vec<String> = behind.iter().flat_map(Behind::failures).collect();
    notes.extend(logs.map(|logs| format!("The servers' logs are in {}.", logs.display())));
    Checked {
        scenario: "rolling",
        heading,
        figures: vec![Table::new(&columns, behind.iter().map(Behind::cells).collect())],
        notes: notes.join("\n"),
        checks: behind.iter().flat_map(|behind| behind.checks(restarts)).collect(),
    }
}
