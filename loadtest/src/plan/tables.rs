//! The tables of docs/SCALING.md (and, with those of [`growth`], of docs/BENCHMARKS.md), and the comparison of the formulas with a measured sale.

use crate::{
    options::defaults,
    plan::{figures::Figures, growth, model::Model, options::PlanOptions, report::Plan},
};
use workload::{
    Error,
    markdown::{self, count, table, time},
};

/// Sizes of a sale: buyers and vouchers.
const SIZES: [(u64, u64); 3] = [(10_000, 100), (1_000_000, 10_000), (100_000_000, 200_000)];
/// What a waiting room lets through in the tables, attempts a second.
const WAITING_ROOM: f64 = 200_000.0;

/// The figures of a plan in each table, as columns.
const OF_SIZE: [&str; 4] = [
    ">sold out after",
    ">all answered after",
    ">99 % wait at most",
    "gives way first (times as much is needed)",
];
const OF_ADDITION: [&str; 7] = [
    ">answers/s needed",
    ">instances",
    ">Redis",
    ">database cores",
    ">sessions",
    ">requests at once",
    ">longest in the waiting room",
];

/// All tables: document, name of the place, table.
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
pub fn write(figures: &Figures) -> Result<(), Error> {
    for (document, name, table) in all(figures)? {
        markdown::write(&markdown::path(document), name, &table)?;
    }
    Ok(())
}

fn sizes(figures: &Figures) -> Result<String, Error> {
    let mut rows = Vec::new();
    for (buyers, stock) in SIZES {
        let plan = Plan::of(figures, &PlanOptions { buyers, stock, ..defaults() })?;
        rows.push([vec![count(buyers), count(stock)], plan.row(&OF_SIZE)].concat());
    }
    Ok(table(&[&[">buyers", ">vouchers"], &OF_SIZE[..]].concat(), &rows))
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
            let plan = Plan::of(figures, &options)?;
            rows.push([vec![count(buyers), name.to_owned()], plan.row(&OF_ADDITION)].concat());
        }
    }
    Ok(table(&[&[">buyers", "added"], &OF_ADDITION[..]].concat(), &rows))
}

/// Times of the measured sale, in seconds, beside what the model of it says: what, measured, calculated.
fn comparison(figures: &Figures) -> Result<[(&'static str, f64, f64); 3], Error> {
    let sale = &figures.sale;
    let options = PlanOptions {
        buyers: sale.buyers,
        tries: 1.0,
        stock: sale.stock,
        over: 0.0,
        strategy: sale.strategy.clone(),
        nodes: 1,
        one_machine: Some(sale.cores),
        ..defaults()
    };
    let formula = Model::new(figures, &options)?.formula();
    Ok([
        ("sold out", sale.sold_out_s, formula.sold_out_s.unwrap_or(f64::NAN)),
        ("99 % of the buyers answered", sale.p99_s, formula.p99_s),
        ("all answered", sale.answered_s, formula.answered_s),
    ])
}

fn compared(figures: &Figures) -> Result<String, Error> {
    let rows = comparison(figures)?.map(|(what, measured_s, formula_s)| {
        let beside = format!("{} ({:.2})", time(formula_s), formula_s / measured_s);
        vec![what.to_owned(), time(measured_s), beside]
    });
    Ok(table(&["after", ">measured", ">formula (÷ measured)"], &rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formula_is_within_a_quarter_of_the_measured_sale() {
        let figures = Figures::read(None).unwrap();
        for (what, measured_s, formula_s) in comparison(&figures).unwrap() {
            // Runs of half a second on a busy machine prove nothing.
            let is_near = (formula_s / measured_s - 1.0).abs() < 0.25;
            assert!(figures.quick || is_near, "{what}: {measured_s}, {formula_s}");
        }
    }

    #[test]
    fn the_tables_of_the_documents_are_those_of_the_figures() {
        for (document, name, table) in all(&Figures::read(None).unwrap()).unwrap() {
            let text = std::fs::read_to_string(markdown::path(document)).unwrap();
            let kept = markdown::section(&text, name);
            assert_eq!(
                kept,
                Some(table.as_str()),
                "{name}: `cargo run -p seckill-loadtest -- plan --write` writes it"
            );
        }
    }
}
