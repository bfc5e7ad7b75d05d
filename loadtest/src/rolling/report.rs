//! The report of a rolling restart.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::balancer::Balancer;
use crate::report::{Check, Checked, Table};
use workload::{checker::Verdict, generator::Record, latency::Latency};

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
    pub requests: usize,
    /// Those that did not become orders, by the reply they got: how many, and the seconds in which they were due.
    pub failed: BTreeMap<String, (usize, BTreeSet<u64>)>,
    /// Latency of all of them.
    pub latency: Latency,
    /// Every reply against every row.
    pub verdict: Verdict,
    /// Whether the tables stood still in the end.
    pub unchanged: bool,
    /// Whether there was a buyer for each purchase.
    pub buyers_left: bool,
}

impl Behind {
    /// Its checks, after `restarts` of instances.
    fn checks(&self, restarts: usize) -> Vec<Check> {
        let what = |what: &str| format!("{}: {what}", self.balancer);
        let yes = |what: String, holds: bool| {
            Check::new(what, if holds { "yes" } else { "no" }, "yes", holds).needed()
        };
        let failed: usize = self.failed.values().map(|(count, _)| count).sum();
        let drained = self.drains.len();
        let mut checks = vec![
            Check::none(what("purchases that failed"), failed as u64),
            Check::new(what("restarts"), drained, restarts, drained == restarts).needed(),
            Check::new(what("purchases"), self.requests, "at least 1", self.requests > 0).needed(),
            yes(what("buyers for all (else more --buyers)"), self.buyers_left),
            yes(what("tables stand still"), self.unchanged),
        ];
        let violations = self.verdict.violations().into_iter();
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
        self.failed.iter().map(|(reply, (count, seconds))| {
            format!("{}: {reply} {count}, due in seconds {seconds:?}", self.balancer)
        })
    }
}

/// The purchases that did not become orders, as [`Behind`] has them.
pub fn failures(records: &[Record]) -> BTreeMap<String, (usize, BTreeSet<u64>)> {
    let mut failed: BTreeMap<String, (usize, BTreeSet<u64>)> = BTreeMap::new();
    for record in records.iter().filter(|record| !record.observed.reply.is_success()) {
        let label = record.observed.reply.label().to_owned();
        let (count, seconds) = failed.entry(label).or_default();
        *count += 1;
        seconds.insert(record.due.as_secs());
    }
    failed
}

/// What was seen behind all balancers, with `restarts` each.
pub fn report(heading: String, behind: &[Behind], restarts: usize) -> Checked {
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
    let notes: Vec<String> = behind.iter().flat_map(Behind::failures).collect();
    Checked {
        scenario: "rolling",
        heading,
        figures: vec![Table::new(&columns, behind.iter().map(Behind::cells).collect())],
        notes: notes.join("\n"),
        checks: behind.iter().flat_map(|behind| behind.checks(restarts)).collect(),
    }
}
