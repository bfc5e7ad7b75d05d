//! The tables of docs/SCALING.md (and, with those of [`growth`], of docs/BENCHMARKS.md), and the comparison of the formulas with a measured sale.

use crate::{
    options::defaults,
    plan::{
        document::{self, count, figure, table},
        figures::Figures,
        growth,
        model::Model,
        options::{Curve, PlanOptions},
        report::{bytes, time},
    },
};
use workload::Error;

/// Sizes of a sale: buyers and vouchers.
const SIZES: [(u64, u64); 3] = [(10_000, 100), (1_000_000, 10_000), (100_000_000, 200_000)];
/// What a waiting room lets through in the tables, attempts a second.
const WAITING_ROOM: f64 = 200_000.0;

/// A time of the measured sale beside what was calculated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Compared {
    /// What it is.
    pub what: &'static str,
    /// Seconds.
    pub measured_s: f64,
    /// Seconds.
    pub formula_s: f64,
}

impl Compared {
    /// The difference from what was measured, as a share of it.
    pub fn difference(&self) -> f64 {
        (self.formula_s / self.measured_s - 1.0).abs()
    }
}

/// Compares the measured sale with the model of it.
///
/// # Errors
/// There are no figures of its strategy.
pub fn comparison(figures: &Figures) -> Result<[Compared; 3], Error> {
    let sale = &figures.sale;
    let options = PlanOptions {
        buyers: sale.buyers,
        tries: 1.0,
        stock: sale.stock,
        arrival: Curve::AtOnce,
        strategy: sale.strategy.clone(),
        nodes: 1,
        one_machine: Some(sale.cores),
        ..defaults()
    };
    let formula = Model::new(figures, &options)?.formula();
    let row = |what, measured_s, formula_s| Compared { what, measured_s, formula_s };
    Ok([
        row("sold out", sale.sold_out_s, formula.sold_out_s.unwrap_or(f64::NAN)),
        row("99 % of the buyers answered", sale.p99_s, formula.p99_s),
        row("all answered", sale.answered_s, formula.answered_s),
    ])
}

/// All tables: document, name of the place, table.
///
/// # Errors
/// There are no figures of a strategy.
pub fn all(figures: &Figures) -> Result<Vec<(&'static str, &'static str, String)>, Error> {
    let plan = [
        ("plan-sizes", sizes(figures)?),
        ("plan-additions", additions(figures)?),
        ("plan-comparison", compared(figures)?),
    ];
    let plan = plan.map(|(name, table)| ("SCALING.md", name, table));
    let growth = growth::tables(figures).map(|(name, table)| ("BENCHMARKS.md", name, table));
    Ok(plan.into_iter().chain(growth).collect())
}

/// Writes them into the documents.
///
/// # Errors
/// A document cannot be read or written.
pub fn write(figures: &Figures) -> Result<(), Error> {
    for (document, name, table) in all(figures)? {
        document::write(&document::path(document), name, &table)?;
    }
    Ok(())
}

fn sizes(figures: &Figures) -> Result<String, Error> {
    let mut rows = Vec::new();
    for (buyers, stock) in SIZES {
        let options = PlanOptions { buyers, stock, ..defaults() };
        let model = Model::new(figures, &options)?;
        let formula = model.formula();
        let first = match model.short_of().first() {
            Some((name, times)) => format!("{name} ({})", figure(*times)),
            None => "nothing".to_owned(),
        };
        rows.push(vec![
            count(buyers),
            count(stock),
            formula.sold_out_s.map_or("–".to_owned(), time),
            time(formula.answered_s),
            time(formula.p99_s),
            first,
        ]);
    }
    Ok(table(
        &[
            ">buyers",
            ">vouchers",
            ">sold out after",
            ">all answered after",
            ">99 % wait at most",
            "gives way first (times as much is needed)",
        ],
        &rows,
    ))
}

fn additions(figures: &Figures) -> Result<String, Error> {
    let mut rows = Vec::new();
    for (buyers, stock) in SIZES {
        let plain = PlanOptions { buyers, stock, ..defaults() };
        let edge = PlanOptions { edge: true, ..plain.clone() };
        let memory = PlanOptions { session_memory: true, ..edge.clone() };
        let room = PlanOptions { waiting_room: Some(WAITING_ROOM), ..memory.clone() };
        for (name, options) in [
            ("nothing", plain),
            ("sold out answered at the edge", edge),
            ("and sessions in the instances' memory", memory),
            ("and a waiting room", room),
        ] {
            let model = Model::new(figures, &options)?;
            let mut row = vec![count(buyers), name.to_owned()];
            row.extend(needs(&model));
            row.push(match options.waiting_room {
                Some(_) => time(model.formula().room_s),
                None => "–".to_owned(),
            });
            rows.push(row);
        }
    }
    Ok(table(
        &[
            ">buyers",
            "added",
            ">answers/s needed",
            ">instances",
            ">Redis",
            ">database cores",
            ">sessions",
            ">requests at once",
            ">longest in the waiting room",
        ],
        &rows,
    ))
}

fn needs(model: &Model) -> [String; 6] {
    let Some(needs) = model.needs() else { return [(); 6].map(|()| "–".to_owned()) };
    [
        figure(needs.answers_per_s),
        count(needs.nodes as u64),
        count(needs.redis_shards as u64),
        figure(needs.database_cores),
        bytes(needs.session_bytes),
        figure(needs.connections),
    ]
}

fn compared(figures: &Figures) -> Result<String, Error> {
    let rows = comparison(figures)?.map(|row| {
        let beside = |seconds: f64| format!("{} ({:.2})", time(seconds), seconds / row.measured_s);
        vec![row.what.to_owned(), time(row.measured_s), beside(row.formula_s)]
    });
    Ok(table(&["after", ">measured", ">formula (÷ measured)"], &rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formulas_are_within_a_quarter_of_the_measured_sale() {
        let figures = Figures::read(None).unwrap();
        for row in comparison(&figures).unwrap() {
            // Runs of half a second on a busy machine prove nothing.
            assert!(figures.quick || row.difference() < 0.25, "{row:?}");
        }
    }

    #[test]
    fn the_tables_of_the_documents_are_those_of_the_figures() {
        for (document, name, table) in all(&Figures::read(None).unwrap()).unwrap() {
            let text = std::fs::read_to_string(document::path(document)).unwrap();
            let kept = document::section(&text, name);
            assert_eq!(
                kept,
                Some(table.as_str()),
                "{name}: `cargo run -p seckill-loadtest -- plan --write` writes it"
            );
        }
    }
}
