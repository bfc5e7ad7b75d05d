//! A crawl's report as text.

use std::fmt;

use super::{Pass, Report};
use workload::table::{Align, render};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nRandom absent ids, asked of {} in turn.\n", self.targets.join(", "))?;
        let right = |title| (title, Align::Right);
        let columns = [
            ("policy", Align::Left),
            ("filter", Align::Left),
            right("requests"),
            right("ids"),
            right("loads"),
            right("at most"),
            right("statements"),
            right("filtered"),
            right("null hits"),
            right("memory hits"),
            right("req/s"),
            right("p99 ms"),
            ("verdict", Align::Left),
        ];
        let rows: Vec<_> = self.passes.iter().map(cells).collect();
        writeln!(f, "{}", render(&columns, &rows))?;
        writeln!(
            f,
            "layered may load its filter's rate of false positives, {} of all requests; the filter\n\
             reaches that rate only with as many shops as it was made for.\n\
             null-caching may load each id once per {} s; for it, and for cache-aside, which nothing\n\
             is asked of, the filter is deleted every 5 ms, so that hardly anything is filtered.\n\
             \"statements\" is the database's own count of whatever it executed meanwhile.\n\
             {} cached nulls were removed.\n",
            self.false_positives, self.null_ttl_s, self.removed
        )?;
        writeln!(f, "{}", self.outcome.text())
    }
}

fn cells(pass: &Pass) -> Vec<String> {
    vec![
        pass.way.to_string(),
        if pass.filter { "yes" } else { "no" }.to_owned(),
        pass.requests.to_string(),
        pass.distinct.to_string(),
        pass.layers.loads.to_string(),
        pass.most_loads.map_or("-".to_owned(), |most| most.to_string()),
        pass.statements.to_string(),
        pass.layers.filtered.to_string(),
        pass.layers.null_hits.to_string(),
        pass.layers.local_hits.to_string(),
        format!("{:.0}", pass.requests as f64 / pass.elapsed_s.max(1e-6)),
        format!("{:.1}", pass.latency.p99_ms),
        pass.standing.text(),
    ]
}
