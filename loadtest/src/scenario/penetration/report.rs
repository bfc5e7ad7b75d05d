//! The report of a penetration run.

use std::fmt;

use serde::Serialize;

use crate::{
    reads::{Layers, ReadStrategy, answer::Tally},
    scenario::check_result::{self, CheckResult, Outcome, Report as _},
};
use workload::{latency::Latency, table::render};

/// One pass, checked.
#[derive(Debug, Clone, Serialize)]
pub struct Pass {
    /// The read strategy.
    pub strategy: ReadStrategy,
    /// Whether the filter was there.
    pub filter: bool,
    /// Requests made.
    pub requests: usize,
    /// Different ids among them.
    pub distinct: usize,
    /// How long it took, in seconds.
    pub elapsed_s: f64,
    /// Most loads it may cause; `None`: as many as it likes.
    pub most_loads: Option<u64>,
    /// Who answered, by the service's metrics.
    pub layers: Layers,
    /// Prepared statements the database executed meanwhile.
    pub statements: u64,
    /// The answers.
    pub answers: Tally,
    /// Latency of all reads.
    pub latency: Latency,
    /// The result of the check.
    pub check: CheckResult,
}

/// A crawl that was made and checked.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Always `penetration`.
    pub scenario: &'static str,
    /// The instances.
    pub targets: Vec<String>,
    /// The filter's stated rate of false positives.
    pub false_positives: f64,
    /// How long a cached null is remembered, in seconds.
    pub null_ttl_s: u64,
    /// The passes.
    pub passes: Vec<Pass>,
    /// Cached nulls removed afterwards.
    pub removed: u64,
}

impl check_result::Report for Report {
    fn outcome(&self) -> Outcome {
        Outcome::of(self.passes.iter().map(|pass| &pass.check))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nRandom absent ids, asked of {} in turn.\n", self.targets.join(", "))?;
        let columns = [
            "read strategy",
            "filter",
            ">requests",
            ">ids",
            ">loads",
            ">at most",
            ">statements",
            ">filtered",
            ">null hits",
            ">memory hits",
            ">req/s",
            ">p99 ms",
            "verdict",
        ];
        let rows: Vec<_> = self.passes.iter().map(cells).collect();
        writeln!(f, "{}", render(&columns, &rows))?;
        writeln!(
            f,
            "layered may load its filter's rate of false positives, {} of all requests; the filter\n\
             reaches that rate only with as many shops as it was made for.\n\
             null-caching may load each id once per {} s; for it, and for cache-aside, which nothing\n\
             is asked of, the filter is deleted every 5 ms, so that hardly anything is filtered.\n\
             \"statements\" is the database's own count of whatever it executed meanwhile.\n\
             {} cached nulls were removed.\n",
            self.false_positives, self.null_ttl_s, self.removed
        )?;
        writeln!(f, "{}", self.outcome().text())
    }
}

fn cells(pass: &Pass) -> Vec<String> {
    vec![
        pass.strategy.to_string(),
        if pass.filter { "yes" } else { "no" }.to_owned(),
        pass.requests.to_string(),
        pass.distinct.to_string(),
        pass.layers.loads.to_string(),
        pass.most_loads.map_or("-".to_owned(), |most| most.to_string()),
        pass.statements.to_string(),
        pass.layers.filtered.to_string(),
        pass.layers.null_hits.to_string(),
        pass.layers.local_hits.to_string(),
        format!("{:.0}", pass.requests as f64 / pass.elapsed_s.max(1e-6)),
        format!("{:.1}", pass.latency.p99_ms),
        pass.check.text(),
    ]
}
