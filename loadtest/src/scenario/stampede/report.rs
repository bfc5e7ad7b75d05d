//! The report of a stampede.

use std::fmt;

use serde::Serialize;

use super::check::{GRACE_MS, Round};
use crate::{
    reads::ReadStrategy,
    scenario::check_result::{self, CheckResult, Outcome, Report as _},
};
use workload::{latency::Latency, table::render};

/// One read strategy's rounds, checked.
#[derive(Debug, Clone, Serialize)]
pub struct Line {
    /// The read strategy.
    pub strategy: ReadStrategy,
    /// Each expiry.
    pub rounds: Vec<Round>,
    /// Latency of all readers on the warm key.
    pub warm: Latency,
    /// Latency of all readers when it had expired.
    pub expired: Latency,
    /// The result of the check.
    pub check: CheckResult,
}

/// A stampede that was run and checked.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Always `stampede`.
    pub scenario: &'static str,
    /// The instances.
    pub targets: Vec<String>,
    /// Readers per instance.
    pub waiters: usize,
    /// The hot shop.
    pub shop_id: u64,
    /// How long the table was locked from the beginning of each burst, in milliseconds.
    pub slow_load_ms: u64,
    /// Median time of the tool's own query for the shop, in milliseconds.
    pub query_ms: f64,
    /// A line per read strategy.
    pub lines: Vec<Line>,
}

impl check_result::Report for Report {
    fn outcome(&self) -> Outcome {
        Outcome::of(self.lines.iter().map(|line| &line.check))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.waiters * self.targets.len();
        writeln!(
            f,
            "\nShop {} expires under {total} readers ({} on each of {}).\n",
            self.shop_id,
            self.waiters,
            self.targets.join(", ")
        )?;
        let columns = [
            "read strategy",
            ">expiries",
            ">loads per expiry",
            ">statements",
            ">longest wait",
            "verdict",
        ];
        let rows: Vec<_> = self.lines.iter().map(cells).collect();
        writeln!(f, "{}", render(&columns, &rows))?;

        let columns =
            ["latency in ms", ">warm p50", ">p99", ">max", ">expired p50", ">p99", ">max", ">load"];
        let rows: Vec<_> = self.lines.iter().map(latencies).collect();
        writeln!(f, "{}", render(&columns, &rows))?;

        writeln!(
            f,
            "Latency runs from the instant at which all readers are let go to the last byte of each\n\
             answer, so it holds what {total} requests at once cost this tool and this machine. The\n\
             same burst on the warm key shows how much that is. The longest wait is an expired\n\
             burst's longest latency less that of the warm burst before it."
        )?;
        if self.slow_load_ms > 0 {
            writeln!(
                f,
                "The table of shops is locked for {} ms from that instant on, so that loads last as\n\
                 long; \"load\" is when the lock was gone plus the time of one query ({:.2} ms).",
                self.slow_load_ms, self.query_ms
            )?;
        } else {
            writeln!(f, "\"load\" is the median time of one query: {:.2} ms.", self.query_ms)?;
        }
        writeln!(
            f,
            "mutex: no reader may wait longer than one load + {GRACE_MS:.0} ms. logical-expiry: all must be\n\
             answered before the load can be done. \"statements\" is the database's own count of\n\
             whatever it executed meanwhile.\n"
        )?;
        writeln!(f, "{}", self.outcome().text())
    }
}

fn range(values: impl Iterator<Item = u64>) -> String {
    let values: Vec<_> = values.collect();
    match (values.iter().min(), values.iter().max()) {
        (Some(least), Some(most)) if least == most => most.to_string(),
        (Some(least), Some(most)) => format!("{least} to {most}"),
        _ => "-".to_owned(),
    }
}

fn longest(line: &Line, of: impl Fn(&super::Round) -> f64) -> String {
    format!("{:.0}", line.rounds.iter().map(of).fold(0.0, f64::max))
}

fn cells(line: &Line) -> Vec<String> {
    vec![
        line.strategy.to_string(),
        line.rounds.len().to_string(),
        range(line.rounds.iter().map(|round| round.loads)),
        range(line.rounds.iter().map(|round| round.statements)),
        longest(line, |round| round.wait_ms()) + " ms",
        line.check.text(),
    ]
}

fn latencies(line: &Line) -> Vec<String> {
    let three = |latency: &Latency| {
        [latency.p50_ms, latency.p99_ms, latency.max_ms].map(|ms| format!("{ms:.0}"))
    };
    let mut cells = vec![line.strategy.to_string()];
    cells.extend(three(&line.warm));
    cells.extend(three(&line.expired));
    cells.push(longest(line, |round| round.load_ms));
    cells
}
