//! The report of an avalanche.

use std::fmt;

use serde::Serialize;

use super::check::Spread;
use crate::{
    reads::answer::Tally,
    scenario::check_result::{self, CheckResult, Outcome},
};
use workload::{latency::Latency, table::render};

/// An avalanche that was measured and checked.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Always `avalanche`.
    pub scenario: &'static str,
    /// The instances.
    pub targets: Vec<String>,
    /// The read strategy, or `the configured one`.
    pub read_strategy: String,
    /// Shops that were read.
    pub keys: u64,
    /// The exact time to live compared with, in seconds.
    pub ttl_s: u64,
    /// How long it took to read all of them, in seconds.
    pub elapsed_s: f64,
    /// Latency of those reads.
    pub latency: Latency,
    /// Their answers.
    pub answers: Tally,
    /// The service's times to live, as Redis has them.
    pub jittered: Spread,
    /// Calculated: store instants plus the exact time to live.
    pub exact_calculated: Spread,
    /// For real: the exact time to live, set by this tool in one pipeline.
    pub exact_set: Spread,
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
            "\n{} shops, each read once through {} in {:.1} s (read strategy: {}; p99 {:.1} ms).\n",
            self.keys,
            self.targets.join(", "),
            self.elapsed_s,
            self.read_strategy,
            self.latency.p99_ms
        )?;
        let columns = [
            "times to live",
            ">keys",
            ">expire within",
            ">in the worst second",
            ">share",
            "how it was made",
        ];
        let ttl = self.ttl_s;
        let rows = [
            row("with jitter", &self.jittered, "as the service gave them, read by PTTL".to_owned()),
            row(
                "without",
                &self.exact_calculated,
                format!("calculated: end of each read + {ttl} s"),
            ),
            row(
                "without",
                &self.exact_set,
                format!("for real: PEXPIRE of {ttl} s in one pipeline by this tool, read by PTTL"),
            ),
        ];
        writeln!(f, "{}", render(&columns, &rows))?;
        writeln!(
            f,
            "With jitter, the worst second may hold a tenth of the smaller share without.\n"
        )?;
        writeln!(f, "{}", self.check.verdict())
    }
}

fn row(name: &str, spread: &Spread, how: String) -> Vec<String> {
    vec![
        name.to_owned(),
        spread.keys.to_string(),
        format!("{:.1} s", spread.span_ms as f64 / 1e3),
        spread.worst_second.to_string(),
        format!("{:.2} %", 100.0 * spread.share()),
        how,
    ]
}
