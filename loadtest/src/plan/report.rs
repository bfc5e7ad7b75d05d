//! The plan of one sale, and its report.

use std::fmt;

use crate::plan::{
    figures::Figures,
    model::{Limit, Model, Needs},
    options::PlanOptions,
    sale::Outcome,
};
use workload::{
    Error,
    markdown::{bytes, count, figure, time},
    table::render,
};

/// The plan of one sale.
pub struct Plan {
    /// The sale and where it runs, in words.
    heading: String,
    /// Its figures by name, in the order of the report.
    cells: Vec<(&'static str, String)>,
    /// Where the measured figures are from.
    conditions: String,
}

impl Plan {
    /// Calculates the plan.
    pub fn of(figures: &Figures, options: &PlanOptions) -> Result<Self, Error> {
        let model = Model::new(figures, options)?;
        let needs = model.needs();
        let none = || "–".to_owned();
        let Outcome { sold_out_s, answered_s, p99_s, room_s } = model.formula();
        let limit = |(rate, what): Limit| format!("{} by {what}", figure(rate));
        let needed = |text: fn(&Needs) -> String| needs.as_ref().map_or_else(none, text);
        let gives_way_first = needs.as_ref().map(|needs| needs.gives_way_first(options));
        let cells = vec![
            ("sold out after", sold_out_s.map_or_else(none, time)),
            ("all answered after", time(answered_s)),
            ("99 % wait at most", time(p99_s)),
            ("longest in the waiting room", room_s.map_or_else(none, time)),
            ("orders/s at most", limit(model.orders_per_s())),
            ("refusals/s at most", limit(model.refusals_per_s())),
            ("answers/s needed", needed(|needs| figure(needs.answers_per_s))),
            ("instances", needed(|needs| count(needs.nodes as u64))),
            ("Redis", needed(|needs| count(needs.redis_shards as u64))),
            ("database cores", needed(|needs| figure(needs.database_cores))),
            ("sessions", needed(|needs| bytes(needs.session_bytes))),
            ("requests at once", needed(|needs| figure(needs.connections))),
            (
                "gives way first (times as much is needed)",
                gives_way_first.unwrap_or("the sale itself".to_owned()),
            ),
        ];
        let conditions = figures.conditions.clone();
        Ok(Self { heading: heading(figures, options), cells, conditions })
    }

    /// The figures of these names, which may be the titles of right-aligned columns.
    pub fn row(&self, titles: &[&str]) -> Vec<String> {
        let cell = |title: &&str| {
            let name = title.trim_start_matches('>');
            let found = self.cells.iter().find(|(known, _)| *known == name);
            found.map_or(String::new(), |(_, text)| text.clone())
        };
        titles.iter().map(cell).collect()
    }
}

fn heading(figures: &Figures, options: &PlanOptions) -> String {
    let PlanOptions { buyers, tries, stock, strategy, over, .. } = options;
    let mut text = format!(
        "{} buyers × {tries} attempts, 63 % within {over} s, {} vouchers by {strategy}",
        count(*buyers),
        count(*stock)
    );
    for (is_on, what) in [
        (options.edge, ", sold out is answered at the edge"),
        (options.session_memory, ", sessions in the instances' memory"),
    ] {
        text += if is_on { what } else { "" };
    }
    if let Some(rate) = options.waiting_room {
        text += &format!(", a waiting room of {}/s", figure(rate));
    }
    format!(
        "{text}\non {} instances of {} cores, {} Redis, a database of {} cores, {} ms a commit\n\
         needed: for 99 % of the answers within {}, on processors busy for 70 % of the time",
        options.nodes,
        options.node_cores,
        options.redis_shards,
        options.database_cores,
        figure(options.commit_ms.unwrap_or(figures.commit_ms)),
        time(options.target)
    )
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: Vec<_> =
            self.cells.iter().map(|(name, text)| vec![(*name).to_owned(), text.clone()]).collect();
        writeln!(f, "{}\n\n{}", self.heading, render(&["", "calculated"], &rows))?;
        write!(f, "Measured, and calculated from: {}", self.conditions)
    }
}
