//! The tables of docs/SCALING.md, among them the comparison of the formula with a measured sale.

use crate::{
    options::defaults,
    plan::{
        figures::Figures,
        model,
        options::PlanOptions,
        sale::{Outcome, sale},
    },
};
use workload::{
    Error,
    markdown::{self, count, table, time},
};

/// Sizes of a sale: buyers and vouchers.
const SIZES: [(u64, u64); 3] = [(10_000, 100), (1_000_000, 10_000), (100_000_000, 200_000)];
const GOES: [&str; 4] = [
    ">sold out after",
    ">all answered after",
    ">99 % wait at most",
    "gives way first (times as much is needed)",
];
const NEEDS: [&str; 5] = [
    ">answers/s needed",
    ">instances",
    ">Redis",
    ">database cores",
    ">sessions",
];

/// All that is made of the figures: document, name of the place, text.
pub fn all(figures: &Figures) -> Result<[(&'static str, &'static str, String); 4], Error> {
    let conditions = format!("{}\n", figures.conditions);
    Ok([
        ("SCALING.md", "plan-sizes", sizes(figures, &GOES)?),
        ("SCALING.md", "plan-needs", sizes(figures, &NEEDS)?),
        ("SCALING.md", "plan-comparison", comparison(figures)?),
        ("BENCHMARKS.md", "scale-conditions", conditions),
    ])
}

/// Writes them into the documents.
pub fn write(figures: &Figures) -> Result<(), Error> {
    for (document, name, text) in all(figures)? {
        markdown::write(&markdown::path(document), name, &text)?;
    }
    Ok(())
}

/// A row for each size of a sale, with those figures of its plan that the titles name.
fn sizes(figures: &Figures, titles: &[&str]) -> Result<String, Error> {
    let mut rows = Vec::new();
    for (buyers, stock) in SIZES {
        let options = PlanOptions {
            buyers,
            stock,
            ..defaults()
        };
        let plan = model::plan(figures, &options)?;
        let mut row = vec![count(buyers), count(stock)];
        for title in titles {
            let name = title.trim_start_matches('>');
            let found = plan.iter().filter(|(found_name, _)| *found_name == name);
            row.extend(found.map(|(_, text)| text.clone()));
        }
        rows.push(row);
    }
    Ok(table(&[&[">buyers", ">vouchers"], titles].concat(), &rows))
}

/// The formula's times as multiples of the measured ones. One machine did everything, so both rates are those of its
/// processors.
fn comparison(figures: &Figures) -> Result<String, Error> {
    let measured = &figures.sale;
    let options = PlanOptions {
        buyers: measured.buyers,
        tries: 1.0,
        stock: measured.stock,
        over: 0.0,
        ..defaults()
    };
    let order = figures.cost("group-commit")?;
    let refusal = figures.cost("sold-out")?;
    let [orders_per_s, refusals_per_s] =
        [order, refusal].map(|cost| 1e6 * measured.cores / (cost.servers_us() + cost.client_us));
    let Outcome {
        sold_out_s,
        answered_s,
        p99_s,
    } = sale(&options, orders_per_s, refusals_per_s);
    let sold_out_s = sold_out_s.unwrap_or(f64::NAN);
    let rows = [
        ("sold out", measured.sold_out_s, sold_out_s),
        ("99 % of the buyers answered", measured.p99_s, p99_s),
        ("all answered", measured.answered_s, answered_s),
    ]
    .map(|(what, measured_s, formula_s)| {
        let beside = format!("{} ({:.2})", time(formula_s), formula_s / measured_s);
        vec![what.to_owned(), time(measured_s), beside]
    });
    Ok(table(
        &["after", ">measured", ">formula (÷ measured)"],
        &rows,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formula_is_within_a_quarter_of_the_measured_sale() {
        let figures = Figures::built_in().unwrap();
        let table = comparison(&figures).unwrap();
        let parts = table.split(['(', ')']);
        let ratios: Vec<f64> = parts.filter_map(|part| part.parse().ok()).collect();
        // The runs of a quick measurement are too short to prove anything.
        let is_quick = figures.conditions.starts_with("**A quick run");
        assert_eq!(ratios.len(), 3, "{table}");
        for ratio in ratios {
            assert!(is_quick || (ratio - 1.0).abs() < 0.25, "{table}");
        }
    }

    #[test]
    fn the_tables_of_the_documents_are_those_of_the_figures() {
        for (document, name, table) in all(&Figures::built_in().unwrap()).unwrap() {
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
