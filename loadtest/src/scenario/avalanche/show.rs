//! An avalanche's report as text.

use std::fmt;

use super::{Report, judge::Spread};
use workload::table::{Align, render};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{} shops, each read once through {} in {:.1} s (policy: {}; p99 {:.1} ms).\n",
            self.keys,
            self.targets.join(", "),
            self.elapsed_s,
            self.policy,
            self.latency.p99_ms
        )?;
        let right = |title| (title, Align::Right);
        let columns = [
            ("times to live", Align::Left),
            right("keys"),
            right("expire within"),
            right("in the worst second"),
            right("share"),
            ("how it was made", Align::Left),
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
        writeln!(f, "{}", self.standing.verdict())
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
