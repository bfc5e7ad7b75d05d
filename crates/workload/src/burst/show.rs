//! A burst's report as text.

use std::fmt;

use super::Report;
use crate::{latency, table::render};

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
        for (name, count) in verdict.invariants() {
            let mark = if count == 0 { "ok" } else { "VIOLATION" };
            judged.push(vec![name.to_owned(), count.to_string(), mark.to_owned()]);
        }
        let columns = ["judged", ">count", ""];
        writeln!(f, "{}", render(&columns, &judged))?;

        let rows = [("all requests", &self.latency), ("orders", &self.latency_ordered)];
        let rows = rows.map(|(name, latency)| latency::row(name, latency));
        writeln!(f, "{}", render(&latency::COLUMNS, &rows))?;

        let replies: Vec<_> = self
            .replies
            .iter()
            .map(|(label, count)| vec![label.clone(), count.to_string()])
            .collect();
        let columns = ["reply", ">count"];
        writeln!(f, "{}", render(&columns, &replies))?;

        writeln!(
            f,
            "{} requests in {:.2} s: {:.0} requests/s, {:.0} orders/s until the last order",
            self.requests, self.elapsed_s, self.requests_per_s, self.orders_per_s
        )?;
        if self.unknown > 0 {
            let (unknown, unacknowledged) = (self.unknown, verdict.unacknowledged);
            writeln!(
                f,
                "{unknown} outcomes unknown to their buyers; {unacknowledged} of them are orders."
            )?;
        }
        for example in &verdict.examples {
            writeln!(f, "  {example}")?;
        }
        if !self.tables_unchanged {
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
