//! A burst's report as text.

use std::fmt;

use super::Report;
use crate::{
    latency::Latency,
    table::{Align, render},
};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let targets = self.targets.join(", ");
        writeln!(
            f,
            "\n{}: {} buyers x {} tries for {} vouchers, {} connections to {targets}\n",
            self.strategy, self.buyers, self.tries, self.stock, self.connections
        )?;

        let verdict = &self.verdict;
        let mut judged = vec![
            vec!["orders".to_owned(), verdict.orders.to_string(), String::new()],
            vec!["stock left".to_owned(), verdict.stock_left.to_string(), String::new()],
        ];
        for (name, count) in verdict.laws() {
            let mark = if count == 0 { "ok" } else { "VIOLATION" };
            judged.push(vec![name.to_owned(), count.to_string(), mark.to_owned()]);
        }
        let columns = [("judged", Align::Left), ("count", Align::Right), ("", Align::Left)];
        writeln!(f, "{}", render(&columns, &judged))?;

        let line = |name: &str, latency: &Latency| {
            let ms = |value: f64| format!("{value:.1}");
            vec![
                name.to_owned(),
                latency.count.to_string(),
                ms(latency.p50_ms),
                ms(latency.p90_ms),
                ms(latency.p99_ms),
                ms(latency.p999_ms),
                ms(latency.max_ms),
            ]
        };
        let columns = [
            ("latency in ms", Align::Left),
            ("count", Align::Right),
            ("p50", Align::Right),
            ("p90", Align::Right),
            ("p99", Align::Right),
            ("p99.9", Align::Right),
            ("max", Align::Right),
        ];
        let rows = [line("all requests", &self.latency), line("orders", &self.latency_ordered)];
        writeln!(f, "{}", render(&columns, &rows))?;

        let replies: Vec<_> = self
            .replies
            .iter()
            .map(|(label, count)| vec![label.clone(), count.to_string()])
            .collect();
        let columns = [("reply", Align::Left), ("count", Align::Right)];
        writeln!(f, "{}", render(&columns, &replies))?;

        writeln!(
            f,
            "{} requests in {:.2} s: {:.0} requests/s, {:.0} orders/s until the last order; \
             {} timed out, {} connections lost, {} not sent",
            self.requests,
            self.elapsed_s,
            self.requests_per_s,
            self.orders_per_s,
            self.timeouts,
            self.connections_lost,
            self.not_sent
        )?;
        if self.unknown > 0 {
            let (unknown, untold) = (self.unknown, verdict.untold);
            writeln!(
                f,
                "{unknown} outcomes unknown to their buyers; {untold} of them are orders."
            )?;
        }
        for example in &verdict.examples {
            writeln!(f, "  {example}")?;
        }
        if !self.settled {
            writeln!(f, "The tables were still changing when they were judged.")?;
        }
        if verdict.is_clean() {
            writeln!(f, "No violation: every reply agrees with every row.")
        } else {
            let named: Vec<_> = verdict
                .violations()
                .iter()
                .map(|(name, count)| format!("{name} {count}"))
                .collect();
            writeln!(f, "VIOLATION: {}", named.join(", "))
        }
    }
}
