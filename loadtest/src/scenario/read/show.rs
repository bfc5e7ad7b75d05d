//! The report of steady reads as text, and their lines of progress.

use std::fmt;

use super::{Report, Second, judge::failed_seconds};
use crate::reads::Layers;
use workload::table::{Align, render};

/// Seconds shown in full; a longer timeline is shown around its failures (all of it is in the JSON).
const MOST_SECONDS: usize = 120;

/// One second, while the run goes on.
pub(super) fn progress(number: usize, second: &Second) -> String {
    let mut line = format!(
        "second {number}: {} reads, p99 {:.1} ms, {} failed",
        second.answers.total(),
        second.latency.p99_ms,
        second.answers.failures()
    );
    if let Some(layers) = second.layers {
        line += &format!(
            "; memory {}, Redis {}, loads {}",
            layers.local_hits, layers.redis_hits, layers.loads
        );
    }
    if let Some(open) = second.breakers_open.filter(|open| *open > 0) {
        line += &format!("; Redis given up by {open} instances");
    }
    line
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let right = |title| (title, Align::Right);
        let loop_ = match self.rate {
            Some(rate) => format!("open loop, {rate} requests/s, latency from the due time"),
            None => "closed loop, latency from sending".to_owned(),
        };
        writeln!(
            f,
            "\n{} shops (Zipf {}), {} % of the requests for absent ones, {} connections to {};\n\
             {loop_}; policy: {}.\n",
            self.ids,
            self.zipf,
            100.0 * self.absent,
            self.connections,
            self.targets.join(", "),
            self.policy
        )?;
        let columns = [
            right("second"),
            right("reads"),
            right("p50 ms"),
            right("p99 ms"),
            right("max ms"),
            right("5xx"),
            right("no answer"),
            right("429"),
            right("memory"),
            right("Redis"),
            right("loads"),
            right("breakers open"),
        ];
        let failed = failed_seconds(&self.timeline);
        let near = |second: usize| failed.iter().any(|failed| second.abs_diff(*failed) <= 3);
        let rows: Vec<_> = self
            .timeline
            .iter()
            .enumerate()
            .filter(|(second, _)| self.timeline.len() <= MOST_SECONDS || near(*second))
            .map(|(number, second)| cells(number, second))
            .collect();
        writeln!(f, "{}", render(&columns, &rows))?;

        let layers = &self.layers;
        let answered = layers.local_hits
            + layers.redis_hits
            + layers.null_hits
            + layers.filtered
            + layers.loads;
        let row = |name: &str, count: u64| {
            let share = 100.0 * count as f64 / answered.max(1) as f64;
            vec![name.to_owned(), count.to_string(), format!("{share:.2} %")]
        };
        let rows = [
            row("memory", layers.local_hits),
            row("Redis, a value", layers.redis_hits),
            row("Redis, a cached null", layers.null_hits),
            row("Bloom filter", layers.filtered),
            row("database", layers.loads),
        ];
        let columns = [("answered by", Align::Left), right("count"), right("share")];
        writeln!(f, "{}", render(&columns, &rows))?;

        let latency = &self.latency;
        let columns = [right("p50 ms"), right("p90"), right("p99"), right("p99.9"), right("max")];
        let figures =
            [latency.p50_ms, latency.p90_ms, latency.p99_ms, latency.p999_ms, latency.max_ms];
        let row = figures.map(|ms| format!("{ms:.2}")).to_vec();
        writeln!(f, "{}", render(&columns, &[row]))?;
        writeln!(
            f,
            "{} reads in {:.1} s: {:.0} requests/s. Answers: {}. {} stale values were served during\n\
             a rebuild, {} keys were removed from Redis by this tool. Readers that shared another's\n\
             work are in no row of the table by layers. In an open loop this tool's own timer adds up\n\
             to 1 ms.\n",
            self.answers.total(),
            self.elapsed_s,
            self.requests_per_s,
            self.answers.text(),
            layers.stale_served,
            self.expired
        )?;
        let allowed = self.tolerate_seconds;
        writeln!(
            f,
            "Seconds with a 5xx or without an answer: {}, {allowed} allowed.",
            failed.len()
        )?;
        writeln!(f, "{}", self.standing.verdict())
    }
}

fn cells(number: usize, second: &Second) -> Vec<String> {
    let of = |count: Option<u64>| count.map_or("?".to_owned(), |count| count.to_string());
    let layer = |layer: fn(&Layers) -> u64| of(second.layers.as_ref().map(layer));
    let mut cells = vec![number.to_string(), second.answers.total().to_string()];
    let latency = &second.latency;
    cells.extend([latency.p50_ms, latency.p99_ms, latency.max_ms].map(|ms| format!("{ms:.1}")));
    cells.extend(
        [second.answers.server_errors, second.answers.no_answer, second.answers.throttled]
            .map(|count| count.to_string()),
    );
    cells.push(layer(|layers| layers.local_hits));
    cells.push(layer(|layers| layers.redis_hits));
    cells.push(layer(|layers| layers.loads));
    cells.push(of(second.breakers_open));
    cells
}
