//! The plan of one sale, and its report.

use std::fmt;

use serde::Serialize;

use crate::{
    plan::{
        document::{count, figure, time},
        figures::Figures,
        model::{Limit, Model, Needs},
        options::PlanOptions,
        sale::Outcome,
    },
    report as result,
};
use workload::{Error, table::render};

/// The plan of one sale.
#[derive(Debug, Clone, Serialize)]
pub struct Plan {
    /// The sale and where it runs, in words.
    pub heading: String,
    /// Orders a second at most, and what limits them.
    pub orders: Limit,
    /// The same for refusals.
    pub refusals: Limit,
    /// How the sale goes, by the formula.
    pub formula: Outcome,
    /// What is needed for the target; `None` where no size reaches it.
    pub needs: Option<Needs>,
    /// Seconds.
    pub target_s: f64,
    /// What is too small for the target, the worst of it.
    pub gives_way_first: String,
    /// Where the figures are from.
    pub conditions: String,
}

impl Plan {
    /// Calculates the plan.
    ///
    /// # Errors
    /// There are no figures of the strategy.
    pub fn of(figures: &Figures, options: &PlanOptions) -> Result<Self, Error> {
        let model = Model::new(figures, options)?;
        let needs = model.needs();
        Ok(Self {
            heading: heading(figures, options),
            orders: model.orders_per_s(),
            refusals: model.refusals_per_s(),
            formula: model.formula(),
            gives_way_first: needs
                .map_or("the sale itself".to_owned(), |needs| needs.gives_way_first(options)),
            needs,
            target_s: options.target,
            conditions: figures.conditions.clone(),
        })
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
        "{text}\non {} instances of {} cores, {} Redis, a database of {} cores, {} ms a commit",
        options.nodes,
        options.node_cores,
        options.redis_shards,
        options.database_cores,
        figure(options.commit_ms.unwrap_or(figures.commit_ms))
    )
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outcome { sold_out_s, answered_s, p99_s, room_s } = self.formula;
        let limit = |(rate, what): Limit| format!("{} by {what}", figure(rate));
        let mut rows = vec![
            ("sold out after", sold_out_s.map_or("stock is left".to_owned(), time)),
            ("all answered after", time(answered_s)),
            ("99 % wait at most", time(p99_s)),
            ("longest in the waiting room", time(room_s)),
            ("orders/s at most", limit(self.orders)),
            ("refusals/s at most", limit(self.refusals)),
        ];
        let within = format!("for 99 % within {} (processors at 70 %)", time(self.target_s));
        let reached = if self.needs.is_some() { "" } else { "no size reaches it" };
        rows.push((within.as_str(), reached.to_owned()));
        rows.extend(
            self.needs.iter().flat_map(|needs| Needs::TITLES.into_iter().zip(needs.cells())),
        );
        rows.push(("gives way first (times as much)", self.gives_way_first.clone()));
        let rows: Vec<_> =
            rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
        writeln!(f, "{}\n\n{}", self.heading, render(&["", "calculated"], &rows))?;
        write!(f, "Measured, and calculated from: {}", self.conditions)
    }
}

impl result::Report for Plan {
    fn outcome(&self) -> result::Outcome {
        result::Outcome::Clean
    }
}
