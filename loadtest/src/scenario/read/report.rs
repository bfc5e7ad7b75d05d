//! The report of steady reads, and their lines of progress.

use std::fmt;

use serde::Serialize;

use crate::{
    reads::{Layers, answer::Tally},
    scenario::check_result::{self, CheckResult, Outcome},
};
use workload::{
    latency::{self, Latency},
    table::render,
};

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

/// One second of a run.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Second {
    /// Its answers.
    pub answers: Tally,
    /// Latency of the reads that ended in it.
    pub latency: Latency,
    /// Who answered, by the service's metrics; `None`: an instance did not tell in time.
    pub layers: Option<Layers>,
    /// Instances that had given Redis up at its end.
    pub breakers_open: Option<u64>,
}

/// Reads that were made and checked.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Always `read`.
    pub scenario: &'static str,
    /// The instances.
    pub targets: Vec<String>,
    /// The read strategy, or `the configured one`.
    pub read_strategy: String,
    /// Requests per second asked for.
    pub rate: Option<f64>,
    /// Connections, over all instances.
    pub connections: usize,
    /// Different shops.
    pub ids: usize,
    /// Skew of Zipf's law over them.
    pub zipf: f64,
    /// Share of requests for ids that do not exist.
    pub absent: f64,
    /// From the first request to the last answer, in seconds.
    pub elapsed_s: f64,
    /// Answers per second.
    pub requests_per_s: f64,
    /// Requests of an open loop that were never sent because all connections were busy.
    pub unsent: u64,
    /// All answers.
    pub answers: Tally,
    /// Latency of all reads: from the due time in an open loop, from sending in a closed one.
    pub latency: Latency,
    /// Who answered, by the service's metrics.
    pub layers: Layers,
    /// Keys removed from Redis meanwhile.
    pub expired: u64,
    /// Second by second.
    pub timeline: Vec<Second>,
    /// Seconds with failures that were allowed.
    pub tolerate_seconds: usize,
    /// The result of the check.
    pub check: CheckResult,
}

impl Report {
    /// The seconds, counted from 0, in which a read got a 5xx or no answer.
    pub fn failed_seconds(&self) -> Vec<usize> {
        let failed =
            |(second, bin): (usize, &Second)| (bin.answers.failures() > 0).then_some(second);
        self.timeline.iter().enumerate().filter_map(failed).collect()
    }
}

impl check_result::Report for Report {
    fn outcome(&self) -> Outcome {
        Outcome::of([&self.check])
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let loop_ = match self.rate {
            Some(rate) => format!("open loop, {rate} requests/s, latency from the due time"),
            None => "closed loop, latency from sending".to_owned(),
        };
        writeln!(
            f,
            "\n{} shops (Zipf {}), {} % of the requests for absent ones, {} connections to {};\n\
             {loop_}; read strategy: {}.\n",
            self.ids,
            self.zipf,
            100.0 * self.absent,
            self.connections,
            self.targets.join(", "),
            self.read_strategy
        )?;
        let columns = [
            ">second",
            ">reads",
            ">p50 ms",
            ">p99 ms",
            ">max ms",
            ">5xx",
            ">no answer",
            ">429",
            ">memory",
            ">Redis",
            ">loads",
            ">breakers open",
        ];
        let failed = self.failed_seconds();
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
        let columns = ["answered by", ">count", ">share"];
        writeln!(f, "{}", render(&columns, &rows))?;

        writeln!(f, "{}", latency::table("latency in ms", &[("all reads", &self.latency)]))?;
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
        writeln!(f, "{}", self.check.verdict())
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
