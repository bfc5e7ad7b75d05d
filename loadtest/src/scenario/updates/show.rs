//! The report of a run of changes as text.

use std::fmt;

use super::Report;
use workload::{
    latency::Latency,
    table::{Align, render},
};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\nShop {}: {} changes confirmed, {} not, through {} in turn; policy: {}.",
            self.shop_id,
            self.confirmed,
            self.unconfirmed,
            self.targets.join(", "),
            self.policy
        )?;
        writeln!(
            f,
            "Invalidation connections were cut {} times, {} connections in all.\n",
            self.cuts, self.connections_cut
        )?;
        let right = |title| (title, Align::Right);
        let columns = [
            ("in ms", Align::Left),
            right("count"),
            right("p50"),
            right("p90"),
            right("p99"),
            right("p99.9"),
            right("max"),
        ];
        let rows = [
            row("PUT /shop", &self.put),
            row("reads", &self.latency),
            row("staleness of stale reads", &self.staleness),
        ];
        writeln!(f, "{}", render(&columns, &rows))?;

        let columns = [
            ("instance", Align::Left),
            right("worst staleness"),
            right("allowed"),
            right("fresh reads after a change"),
        ];
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
        writeln!(f, "{}", self.standing.verdict())
    }
}

fn row(name: &str, latency: &Latency) -> Vec<String> {
    let figures = [latency.p50_ms, latency.p90_ms, latency.p99_ms, latency.p999_ms, latency.max_ms];
    let mut cells = vec![name.to_owned(), latency.count.to_string()];
    cells.extend(figures.map(|ms| format!("{ms:.1}")));
    cells
}
