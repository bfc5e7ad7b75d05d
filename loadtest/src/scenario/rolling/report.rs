//! The report of a rolling restart.

use std::{collections::BTreeMap, fmt, path::PathBuf, time::Duration};

use serde::Serialize;

use super::balancer::Balancer;
use crate::scenario::check_result::{self, CheckResult, Outcome};
use workload::{generator::Record, latency::Latency, table::render};

/// Seconds with failures that are named.
const SHOWN: usize = 12;

/// How long instances took to end, in milliseconds.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Drains {
    /// How many ended.
    pub count: usize,
    /// The median.
    pub p50_ms: u128,
    /// The longest.
    pub max_ms: u128,
}

impl From<Vec<Duration>> for Drains {
    fn from(mut drains: Vec<Duration>) -> Self {
        drains.sort_unstable();
        let ms = |index: usize| drains.get(index).map_or(0, Duration::as_millis);
        Self {
            count: drains.len(),
            p50_ms: ms(drains.len() / 2),
            max_ms: ms(drains.len().saturating_sub(1)),
        }
    }
}

/// What was seen behind one balancer.
#[derive(Debug, Clone, Serialize)]
pub struct Behind {
    /// The balancer.
    pub balancer: Balancer,
    /// Orders per second in a closed loop; `None` where the rate was given.
    pub capacity: Option<f64>,
    /// Purchases per second during the restarts.
    pub rate: f64,
    /// The restarts.
    pub restarts: Drains,
    /// How long all of them took.
    pub seconds: f64,
    /// Purchases made meanwhile.
    pub requests: u64,
    /// Those that did not become orders, by the reply they got and the second in which they were due.
    pub failed: BTreeMap<String, BTreeMap<u64, usize>>,
    /// Latency of all of them, counted from when they were due.
    pub latency: Latency,
    /// Violated invariants of the checker.
    pub violations: BTreeMap<&'static str, i64>,
    /// Why nothing can be said.
    pub unclear: Option<String>,
}

impl Behind {
    /// Purchases that did not become orders.
    pub fn failures(&self) -> usize {
        self.failed.values().flat_map(BTreeMap::values).sum()
    }

    /// The result.
    pub fn check(&self) -> CheckResult {
        let mut violations: Vec<String> = self
            .violations
            .iter()
            .map(|(invariant, count)| format!("{invariant} {count}"))
            .collect();
        if self.failures() > 0 {
            violations.push(format!("{} failed", self.failures()));
        }
        if !violations.is_empty() {
            return CheckResult::of(violations);
        }
        match &self.unclear {
            Some(why) => CheckResult::Unclear(why.clone()),
            None if self.requests == 0 => CheckResult::Unclear("nothing was bought".to_owned()),
            None => CheckResult::Holds,
        }
    }
}

/// A rolling restart behind each balancer.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Always `rolling`.
    pub scenario: &'static str,
    /// The sales' strategy.
    pub strategy: String,
    /// Instances.
    pub instances: u16,
    /// How often all were restarted.
    pub rounds: u32,
    /// What was seen.
    pub behind: Vec<Behind>,
    /// Where the servers' logs are, after a violation.
    pub logs: Option<PathBuf>,
}

/// The purchases that did not become orders, by the reply that they got and the second in which they were due.
pub fn failures(records: &[Record]) -> BTreeMap<String, BTreeMap<u64, usize>> {
    let mut failed: BTreeMap<String, BTreeMap<u64, usize>> = BTreeMap::new();
    for record in records.iter().filter(|record| !record.observed.reply.is_success()) {
        let label = record.observed.reply.label().to_owned();
        *failed.entry(label).or_default().entry(record.sent.as_secs()).or_default() += 1;
    }
    failed
}

impl check_result::Report for Report {
    fn outcome(&self) -> Outcome {
        let checks: Vec<_> = self.behind.iter().map(Behind::check).collect();
        Outcome::of(&checks)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{} instances, all restarted {} times in turn, {}.\n",
            self.instances, self.rounds, self.strategy
        )?;
        let columns = [
            "behind",
            ">capacity/s",
            ">load/s",
            ">restarts",
            ">drain ms",
            ">longest",
            ">purchases",
            ">failed",
            ">p50 ms",
            ">p99 ms",
            ">max ms",
            "result",
        ];
        let rows: Vec<_> = self.behind.iter().map(row).collect();
        writeln!(f, "{}", render(&columns, &rows))?;
        for behind in &self.behind {
            for (reply, seconds) in &behind.failed {
                let count: usize = seconds.values().sum();
                let shown =
                    seconds.iter().take(SHOWN).map(|(second, count)| format!("{second} ({count})"));
                let shown = shown.collect::<Vec<_>>().join(", ");
                let more = if seconds.len() > SHOWN { ", …" } else { "" };
                let balancer = behind.balancer;
                writeln!(f, "  {balancer}: {reply} {count}, in seconds {shown}{more}")?;
            }
        }
        if let Some(logs) = &self.logs {
            writeln!(f, "The servers' logs are in {}.", logs.display())?;
        }
        f.write_str(check_result::Report::outcome(self).text())
    }
}

fn row(behind: &Behind) -> Vec<String> {
    let ms = |value: f64| format!("{value:.1}");
    vec![
        behind.balancer.to_string(),
        behind.capacity.map_or("–".to_owned(), |rate| format!("{rate:.0}")),
        format!("{:.0}", behind.rate),
        behind.restarts.count.to_string(),
        behind.restarts.p50_ms.to_string(),
        behind.restarts.max_ms.to_string(),
        behind.requests.to_string(),
        behind.failures().to_string(),
        ms(behind.latency.p50_ms),
        ms(behind.latency.p99_ms),
        ms(behind.latency.max_ms),
        behind.check().text(),
    ]
}
