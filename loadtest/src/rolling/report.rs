//! The report of a rolling restart.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::balancer::Balancer;
use crate::report::{Check, Checked, Table};
use workload::{checker::Verdict, generator::Record, latency::Latency};

const COLUMNS: [&str; 9] = [
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

/// A report to which each balancer is added.
pub fn empty(heading: String) -> Checked {
    let figures = vec![Table::new(&COLUMNS, Vec::new())];
    Checked { scenario: "rolling", heading, figures, notes: String::new(), checks: Vec::new() }
}

/// What was seen behind one balancer.
pub struct Behind<'a> {
    /// The balancer.
    pub balancer: Balancer,
    /// Orders per second in a closed loop; `None` where the rate was given.
    pub capacity: Option<f64>,
    /// Purchases per second during the restarts.
    pub rate: f64,
    /// How long each instance took to end, the longest last.
    pub drains: Vec<Duration>,
    /// The purchases made meanwhile.
    pub rolled: &'a [Record],
    /// Every reply against every row.
    pub verdict: Verdict,
    /// Whether the tables stood still in the end.
    pub unchanged: bool,
    /// Whether there was a buyer for each purchase.
    pub buyers_left: bool,
}

impl Behind<'_> {
    /// Adds it to the report, after `restarts` of instances.
    pub fn add_to(&self, report: &mut Checked, restarts: usize) {
        let (balancer, drained) = (self.balancer, self.drains.len());
        let drain = |at: usize| self.drains.get(at).map_or(0, Duration::as_millis).to_string();
        let latency = Latency::of(self.rolled.iter().map(Record::latency));
        let mut cells = vec![
            balancer.to_string(),
            self.capacity.map_or("–".to_owned(), |rate| format!("{rate:.0}")),
            format!("{:.0}", self.rate),
            drain(drained / 2),
            drain(drained.saturating_sub(1)),
            self.rolled.len().to_string(),
        ];
        cells.extend([latency.p50_ms, latency.p99_ms, latency.max_ms].map(|ms| format!("{ms:.1}")));
        report.figures[0].rows.push(cells);

        // By the reply that was no order, the seconds in which such purchases were due.
        let mut failed: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for record in self.rolled.iter().filter(|record| !record.observed.reply.is_success()) {
            failed.entry(record.observed.reply.label()).or_default().push(record.due.as_secs());
        }
        for (reply, due) in &failed {
            let (count, seconds) = (due.len(), due.iter().collect::<BTreeSet<_>>());
            let line = format!("{balancer}: {reply} {count}, due in seconds {seconds:?}\n");
            report.notes.push_str(&line);
        }

        let what = |what: &str| format!("{balancer}: {what}");
        let yes = |what: String, holds: bool| {
            Check::new(what, if holds { "yes" } else { "no" }, "yes", holds).needed()
        };
        let (failed, made) = (failed.values().map(Vec::len).sum::<usize>(), self.rolled.len());
        report.checks.extend([
            Check::none(what("purchases that failed"), failed as u64),
            Check::new(what("restarts"), drained, restarts, drained == restarts).needed(),
            Check::new(what("purchases"), made, "at least 1", made > 0).needed(),
            yes(what("buyers for all (else more --buyers)"), self.buyers_left),
            yes(what("tables stand still"), self.unchanged),
        ]);
        let violations = self.verdict.violations().into_iter();
        report
            .checks
            .extend(violations.map(|(name, count)| Check::new(what(name), count, 0, false)));
    }
}
