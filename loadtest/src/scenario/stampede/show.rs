//! A stampede's report as text.

use std::fmt;

use super::{Line, Report, judge::GRACE_MS};
use workload::{
    latency::Latency,
    table::{Align, render},
};

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
        let right = |title| (title, Align::Right);
        let columns = [
            ("policy", Align::Left),
            right("expiries"),
            right("loads per expiry"),
            right("statements"),
            right("longest wait"),
            ("verdict", Align::Left),
        ];
        let rows: Vec<_> = self.lines.iter().map(cells).collect();
        writeln!(f, "{}", render(&columns, &rows))?;

        let columns = [
            ("latency in ms", Align::Left),
            right("warm p50"),
            right("p99"),
            right("max"),
            right("expired p50"),
            right("p99"),
            right("max"),
            right("load"),
        ];
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
            "mutex: nobody may wait longer than one load + {GRACE_MS:.0} ms. logical-expiry: all must be\n\
             answered before the load can be done. \"statements\" is the database's own count of\n\
             whatever it executed meanwhile.\n"
        )?;
        writeln!(f, "{}", self.outcome.text())
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
        line.way.to_string(),
        line.rounds.len().to_string(),
        range(line.rounds.iter().map(|round| round.loads)),
        range(line.rounds.iter().map(|round| round.statements)),
        longest(line, |round| round.wait_ms()) + " ms",
        line.standing.text(),
    ]
}

fn latencies(line: &Line) -> Vec<String> {
    let three = |latency: &Latency| {
        [latency.p50_ms, latency.p99_ms, latency.max_ms].map(|ms| format!("{ms:.0}"))
    };
    let mut cells = vec![line.way.to_string()];
    cells.extend(three(&line.warm));
    cells.extend(three(&line.expired));
    cells.push(longest(line, |round| round.load_ms));
    cells
}
