//! The report of a run of updates.

use std::fmt;

use serde::Serialize;

use crate::{
    reads::answer::Tally,
    scenario::check_result::{self, CheckResult, Outcome},
};
use workload::{
    latency::{self, Latency},
    table::render,
};

/// Changes that were made, and what the readers saw.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Always `updates`.
    pub scenario: &'static str,
    /// The instances.
    pub targets: Vec<String>,
    /// The read strategy, or `the configured one`.
    pub read_strategy: String,
    /// The shop.
    pub shop_id: u64,
    /// Changes confirmed.
    pub confirmed: u64,
    /// Changes that were not: refused, or without an answer.
    pub unconfirmed: u64,
    /// Latency of the changes.
    pub put: Latency,
    /// Times the invalidation connections were cut.
    pub cuts: u64,
    /// Connections that were cut, all together.
    pub connections_cut: u64,
    /// Whether cutting was asked for.
    pub cut_every: u64,
    /// How long an old value may be served, in milliseconds.
    pub bound_ms: u64,
    /// Reads, by answer.
    pub reads: Tally,
    /// Latency of the reads.
    pub latency: Latency,
    /// Reads that began after a change was confirmed and returned an older version.
    pub stale: u64,
    /// How long after that confirmation they began.
    pub staleness: Latency,
    /// The worst of them on each instance, in milliseconds.
    pub worst_ms: Vec<f64>,
    /// Reads of each instance that began after the last change was confirmed.
    pub tail_reads: Vec<u64>,
    /// Reads beyond the bound.
    pub beyond: u64,
    /// Reads that returned a name that was not written yet.
    pub foreign: u64,
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
            "\nShop {}: {} changes confirmed, {} not, through {} in turn; read strategy: {}.",
            self.shop_id,
            self.confirmed,
            self.unconfirmed,
            self.targets.join(", "),
            self.read_strategy
        )?;
        writeln!(
            f,
            "Invalidation connections were cut {} times, {} connections in all.\n",
            self.cuts, self.connections_cut
        )?;
        let rows = [
            ("PUT /shop", &self.put),
            ("reads", &self.latency),
            ("staleness of stale reads", &self.staleness),
        ];
        writeln!(f, "{}", latency::table("in ms", &rows))?;

        let columns = ["instance", ">worst staleness", ">allowed", ">fresh reads after a change"];
        let rows: Vec<_> = self
            .targets
            .iter()
            .zip(&self.worst_ms)
            .zip(&self.tail_reads)
            .map(|((target, worst), tail)| {
                vec![
                    target.clone(),
                    format!("{worst:.1} ms"),
                    format!("{} ms", self.bound_ms),
                    tail.to_string(),
                ]
            })
            .collect();
        writeln!(f, "{}", render(&columns, &rows))?;
        writeln!(
            f,
            "A read is stale when it was sent after a change had been confirmed and returned an older\n\
             version; its staleness is the time between the two. {} of {} reads were stale, {} beyond\n\
             the bound of {} ms. Answers: {}.\n",
            self.stale,
            self.reads.total(),
            self.beyond,
            self.bound_ms,
            self.reads.text()
        )?;
        writeln!(f, "{}", self.check.verdict())
    }
}
