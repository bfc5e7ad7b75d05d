//! The plan of one sale, and its report.

use std::fmt;

use crate::plan::{
    figures::Figures,
    model::{Limit, Model},
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
        let Outcome { sold_out_s, answered_s, p99_s, room_s } = model.formula();
        let limit = |(rate, what): Limit| format!("{} by {what}", figure(rate));
        let mut cells = vec![
            ("sold out after", sold_out_s.map_or_else(|| "–".to_owned(), time)),
            ("all answered after", time(answered_s)),
            ("99 % wait at most", time(p99_s)),
            ("orders/s at most", limit(model.orders_per_s())),
            ("refusals/s at most", limit(model.refusals_per_s())),
        ];
        cells.extend(room_s.map(|longest| ("longest in the waiting room", time(longest))));
        let gives_way_first = match model.needed_rate() {
            // The orders of one sale have a limit of their own.
            None => "the sale itself".to_owned(),
            Some(rate) => {
                let [instances, redis, database] = model.needed(rate);
                let sessions = options.buyers as f64 * figures.memory.session_redis;
                cells.extend([
                    ("answers/s needed", figure(rate)),
                    ("instances", count(instances as u64)),
                    ("Redis", count(redis as u64)),
                    ("database cores", figure(database)),
                    ("sessions", bytes(sessions)),
                    ("requests at once", figure(rate * options.target)),
                ]);
                let times = [
                    ("instances", instances / f64::from(options.nodes)),
                    ("Redis", redis / f64::from(options.redis_shards)),
                    ("database", database / options.database_cores),
                ];
                match times.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)) {
                    Some((name, times)) if times > 1.0 => format!("{name} ({})", figure(times)),
                    _ => "nothing".to_owned(),
                }
            }
        };
        cells.push(("gives way first (times as much is needed)", gives_way_first));
        let conditions = figures.conditions.clone();
        Ok(Self { heading: heading(figures, options), cells, conditions })
    }

    /// The figures of these names, which may be the titles of right-aligned columns.
    pub fn row(&self, titles: &[&str]) -> Vec<String> {
        let cell = |title: &&str| {
            let name = title.trim_start_matches('>');
            let found = self.cells.iter().find(|(known, _)| *known == name);
            found.map_or("–".to_owned(), |(_, text)| text.clone())
        };
        titles.iter().map(cell).collect()
    }
}

fn heading(figures: &Figures, options: &PlanOptions) -> String {
    let PlanOptions { buyers, tries, stock, strategy, over, .. } = options;
    format!(
        "{} buyers × {tries} attempts, 63 % within {over} s, {} vouchers by {strategy}\n\
         on {} instances of {} cores, {} Redis, a database of {} cores, {} ms a commit\n\
         needed: for 99 % of the answers within {}, on processors busy for 70 % of the time",
        count(*buyers),
        count(*stock),
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
