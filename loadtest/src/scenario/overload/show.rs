//! An overload's report as text.

use std::fmt;

use super::{Load, Report};
use workload::table::{Align, render};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (left, right) = (|title| (title, Align::Left), |title| (title, Align::Right));
        writeln!(
            f,
            "\n{}: {} buyers, {} sales, to {}; then {} times the peak.\n",
            self.strategy,
            self.buyers,
            self.sales,
            self.targets.join(", "),
            self.factor
        )?;
        let columns = [
            left("load"),
            right("offered/s"),
            right("orders/s"),
            right("accepted"),
            right("refused"),
            right("failed"),
            right("unsent"),
            right("p50 ms"),
            right("p99 ms"),
            right("p99.9 ms"),
            right("refused p50"),
            right("refused p99"),
            right("memory MB"),
        ];
        let rows = [row("peak", &self.peak), row("overload", &self.overload)];
        writeln!(f, "{}", render(&columns, &rows))?;
        for (code, count) in &self.overload.replies {
            writeln!(f, "  {code} {count}")?;
        }
        writeln!(
            f,
            "\nLatency counts from the due time. {:.2} of the peak's orders per second got through.",
            self.goodput
        )?;
        write!(f, "{}", self.standing.verdict())
    }
}

fn row(name: &str, load: &Load) -> Vec<String> {
    let ms = |value: f64| format!("{value:.1}");
    let memory = load
        .memory
        .map_or("?".to_owned(), |(before, most)| format!("{} → {}", before >> 20, most >> 20));
    vec![
        name.to_owned(),
        load.offered_per_s.map_or("closed".to_owned(), |rate| format!("{rate:.0}")),
        format!("{:.0}", load.orders_per_s),
        load.accepted.to_string(),
        load.refused.to_string(),
        load.failed.to_string(),
        load.unsent.to_string(),
        ms(load.latency_accepted.p50_ms),
        ms(load.latency_accepted.p99_ms),
        ms(load.latency_accepted.p999_ms),
        ms(load.latency_refused.p50_ms),
        ms(load.latency_refused.p99_ms),
        memory,
    ]
}
