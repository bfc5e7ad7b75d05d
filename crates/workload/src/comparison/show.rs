//! A comparison's end as text.

use std::fmt;

use super::document::Document;
use crate::table::render;

impl fmt::Display for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let setting = &self.setting;
        writeln!(
            f,
            "\nEach lane: {} buyers x {} tries for {} vouchers over {} s, {} instance(s), seed {}\n",
            setting.buyers,
            setting.tries,
            setting.stock,
            setting.spread_seconds,
            setting.instances,
            self.seed
        )?;
        let columns = [
            "lane",
            ">requests",
            ">orders",
            ">oversold",
            ">duplicates",
            ">p50 ms",
            ">p99 ms",
            "verdict",
        ];
        let rows: Vec<_> = self
            .lanes
            .iter()
            .filter_map(|lane| {
                let result = lane.result.as_ref()?;
                let (report, verdict) = (&result.report, &result.report.verdict);
                Some(vec![
                    lane.strategy.to_string(),
                    report.requests.to_string(),
                    verdict.orders.to_string(),
                    verdict.oversold.to_string(),
                    verdict.duplicates.to_string(),
                    format!("{:.1}", report.latency.p50_ms),
                    format!("{:.1}", report.latency.p99_ms),
                    result.conformance.text(),
                ])
            })
            .collect();
        writeln!(f, "{}", render(&columns, &rows))?;
        for event in &self.events {
            let node = event.node.as_deref().unwrap_or_default();
            writeln!(f, "at {:.1} s: {} {node}", event.at, event.what)?;
        }
        Ok(())
    }
}
