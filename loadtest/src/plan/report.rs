//! The plan of one sale, and its report.

use std::fmt;

use serde::Serialize;

use crate::{
    plan::{
        document::{count, figure},
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
    /// The sale in words.
    pub sale: String,
    /// Where it runs, in words.
    pub place: String,
    /// Orders a second at most, and what limits them.
    pub orders: Limit,
    /// The same for refusals.
    pub refusals: Limit,
    /// How the sale goes, by the formulas.
    pub formula: Outcome,
    /// What is needed for the target; `None` where no size reaches it.
    pub needs: Option<Needs>,
    /// Seconds.
    pub target_s: f64,
    /// What is too small for the target, the worst first: name, and how many times as much is needed.
    pub short_of: Vec<(&'static str, f64)>,
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
        Ok(Self {
            sale: sale(options),
            place: place(figures, options),
            orders: model.orders_per_s(),
            refusals: model.refusals_per_s(),
            formula: model.formula(),
            needs: model.needs(),
            target_s: options.target,
            short_of: model.short_of(),
            conditions: figures.conditions.clone(),
        })
    }
}

fn sale(options: &PlanOptions) -> String {
    let PlanOptions { buyers, tries, stock, strategy, over, .. } = options;
    let curve = format!("{:?}", options.arrival).to_lowercase();
    let mut text = format!(
        "{} buyers × {tries} attempts, {} vouchers by {strategy}, arrival {curve} ({over} s)",
        count(*buyers),
        count(*stock)
    );
    for (is_on, what) in [
        (options.edge, "sold out is answered at the edge"),
        (options.session_memory, "sessions in the instances' memory"),
    ] {
        if is_on {
            text = format!("{text}, {what}");
        }
    }
    match options.waiting_room {
        Some(rate) => format!("{text}, a waiting room of {}/s", figure(rate)),
        None => text,
    }
}

fn place(figures: &Figures, options: &PlanOptions) -> String {
    match options.one_machine {
        Some(cores) => format!("one machine of {cores} cores, with the load generator"),
        None => format!(
            "{} instances of {} cores, {} Redis, a database of {} cores, {} ms a commit",
            options.nodes,
            options.node_cores,
            options.redis_shards,
            options.database_cores,
            figure(options.commit_ms.unwrap_or(figures.commit_ms))
        ),
    }
}

/// A time with its unit.
pub fn time(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => format!("{} ms", figure(s * 1e3)),
        s if s < 600.0 => format!("{} s", figure(s)),
        s if s < 36_000.0 => format!("{} min", figure(s / 60.0)),
        s => format!("{} h", figure(s / 3_600.0)),
    }
}

/// A size with its unit.
pub fn bytes(count: f64) -> String {
    match count {
        c if c < 1e3 => format!("{} B", figure(c)),
        c if c < 1e6 => format!("{} KB", figure(c / 1e3)),
        c if c < 1e9 => format!("{} MB", figure(c / 1e6)),
        c => format!("{} GB", figure(c / 1e9)),
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\non {}\n", self.sale, self.place)?;
        let sale = &self.formula;
        let rows = [
            ("sold out after", sale.sold_out_s.map_or("stock is left".to_owned(), time)),
            ("all answered after", time(sale.answered_s)),
            ("median wait", time(sale.p50_s)),
            ("99 % wait at most", time(sale.p99_s)),
            ("in the waiting room", time(sale.room_s)),
            ("waiting at once", figure(sale.waiting)),
        ];
        let rows = rows.map(|(name, value)| vec![name.to_owned(), value]);
        writeln!(f, "{}", render(&["", ">calculated"], &rows))?;
        for (what, (rate, limit)) in [("orders", self.orders), ("refusals", self.refusals)] {
            writeln!(f, "At most {} {what} a second: {limit} is the limit.", figure(rate))?;
        }
        if let Some(needs) = &self.needs {
            writeln!(
                f,
                "For 99 % within {}: {} answers a second, so {} cores in {} instances, {} Redis, {} cores of the \
                 database (all at 70 %); {} of Redis memory for sessions, {} requests at once ({}).",
                time(self.target_s),
                figure(needs.answers_per_s),
                figure(needs.service_cores),
                count(needs.nodes as u64),
                count(needs.redis_shards as u64),
                figure(needs.database_cores),
                bytes(needs.session_bytes),
                figure(needs.connections),
                bytes(needs.connection_bytes),
            )?;
            match self.short_of.first() {
                Some((name, times)) => {
                    writeln!(
                        f,
                        "First to give way: {name}, {} times as much is needed.",
                        figure(*times)
                    )?;
                }
                None => writeln!(f, "What is there is enough for that.")?,
            }
        } else if !self.place.starts_with("one machine") {
            writeln!(
                f,
                "No size reaches 99 % within {}: one sale has its limit.",
                time(self.target_s)
            )?;
        }
        write!(f, "Figures: {}", self.conditions)
    }
}

impl result::Report for Plan {
    fn outcome(&self) -> result::Outcome {
        result::Outcome::Clean
    }
}
