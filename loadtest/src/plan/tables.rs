//! The tables of docs/SCALING.md, among them the comparison of the formulas with a measured sale; and those of measured
//! growth and memory in docs/BENCHMARKS.md.

use crate::{
    options::defaults,
    plan::{
        figures::{Answer, Figures, Level, MeasuredSale},
        model,
        options::PlanOptions,
        sale,
    },
};
use workload::{
    Error,
    markdown::{self, bytes, count, figure, table, time},
};

/// Sizes of a sale: buyers and vouchers.
const SIZES: [(u64, u64); 3] = [(10_000, 100), (1_000_000, 10_000), (100_000_000, 200_000)];
/// What a waiting room lets through in the tables, attempts a second.
const WAITING_ROOM: f64 = 200_000.0;
/// Growth beyond this is set in bold, and explained in the document.
const EXPECTED: f64 = 1.2;

/// All tables: document, name of the place, table.
pub fn all(figures: &Figures) -> Result<[(&'static str, &'static str, String); 6], Error> {
    Ok([
        ("SCALING.md", "plan-sizes", sizes(figures)?),
        ("SCALING.md", "plan-additions", additions(figures)?),
        ("SCALING.md", "plan-comparison", comparison(figures)?),
        ("BENCHMARKS.md", "scale-growth", growth(figures)),
        ("BENCHMARKS.md", "scale-memory", memory(figures)),
        (
            "BENCHMARKS.md",
            "scale-conditions",
            format!("{}\n", figures.conditions),
        ),
    ])
}

/// Writes them into the documents.
pub fn write(figures: &Figures) -> Result<(), Error> {
    for (document, name, table) in all(figures)? {
        markdown::write(&markdown::path(document), name, &table)?;
    }
    Ok(())
}

/// A table with a row for each plan: first the cells that are given with it, whose titles are `before`, then those figures
/// of the plan whose names are `titles`.
fn plans(
    figures: &Figures,
    before: &[&str],
    titles: &[&str],
    rows: impl IntoIterator<Item = (Vec<String>, PlanOptions)>,
) -> Result<String, Error> {
    let mut table_rows = Vec::new();
    for (mut cells, options) in rows {
        let plan = model::plan(figures, &options)?;
        for title in titles {
            let name = title.trim_start_matches('>');
            let found = plan.iter().find(|(found_name, _)| *found_name == name);
            cells.push(found.map_or("–".to_owned(), |(_, text)| text.clone()));
        }
        table_rows.push(cells);
    }
    Ok(table(&[before, titles].concat(), &table_rows))
}

fn sizes(figures: &Figures) -> Result<String, Error> {
    let titles = [
        ">sold out after",
        ">all answered after",
        ">99 % wait at most",
        "gives way first (times as much is needed)",
    ];
    let rows = SIZES.map(|(buyers, stock)| {
        (
            vec![count(buyers), count(stock)],
            PlanOptions {
                buyers,
                stock,
                ..defaults()
            },
        )
    });
    plans(figures, &[">buyers", ">vouchers"], &titles, rows)
}

fn additions(figures: &Figures) -> Result<String, Error> {
    let titles = [
        ">answers/s needed",
        ">instances",
        ">Redis",
        ">database cores",
        ">sessions",
        ">requests at once",
        ">longest in the waiting room",
    ];
    // The smallest size needs no additions.
    let rows = SIZES.into_iter().skip(1).flat_map(|(buyers, stock)| {
        let plain = PlanOptions {
            buyers,
            stock,
            ..defaults()
        };
        let edge = PlanOptions {
            edge: true,
            ..plain.clone()
        };
        let memory = PlanOptions {
            session_memory: true,
            ..edge.clone()
        };
        let room = PlanOptions {
            waiting_room: Some(WAITING_ROOM),
            ..memory.clone()
        };
        let added = [
            ("nothing", plain),
            ("sold out answered at the edge", edge),
            ("and sessions in the instances' memory", memory),
            ("and a waiting room", room),
        ];
        added.map(|(name, options)| (vec![count(buyers), name.to_owned()], options))
    });
    plans(figures, &[">buyers", "added"], &titles, rows)
}

/// The measured sale beside the formula. One machine did everything, so both rates are those of its processors.
fn comparison(figures: &Figures) -> Result<String, Error> {
    let MeasuredSale {
        buyers,
        stock,
        cores,
        sold_out_s,
        answered_s,
        p99_s,
    } = figures.sale;
    let [order, refusal] = [figures.cost("group-commit")?, figures.cost("sold-out")?];
    let [order_s, refusal_s] =
        [order, refusal].map(|cost| (cost.servers_us() + cost.client_us) / 1e6);
    let options = PlanOptions {
        buyers,
        tries: 1.0,
        stock,
        over: 0.0,
        ..defaults()
    };
    let alone_s = [order_s + figures.commit_ms / 1e3, refusal_s];
    let formula = sale::sale(&options, [cores / order_s, cores / refusal_s], alone_s);
    let rows = [
        (
            "sold out",
            sold_out_s,
            formula.sold_out_s.unwrap_or(f64::NAN),
        ),
        ("99 % of the buyers answered", p99_s, formula.p99_s),
        ("all answered", answered_s, formula.answered_s),
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

fn growth(figures: &Figures) -> String {
    let titles = [
        "",
        ">service µs",
        ">database µs",
        ">Redis µs",
        ">÷ smallest",
        ">range",
        ">p99 ms",
        ">÷ smallest",
        ">orders a commit",
    ];
    let times = |value: f64| {
        if value > EXPECTED {
            format!("**{value:.2}**")
        } else {
            format!("{value:.2}")
        }
    };
    let row = |kind: &str, level: &Level, answer: &Answer| {
        let [median, min, max] = answer.growth;
        vec![
            format!("{kind}, {} {}", count(level.count), level.dimension),
            figure(answer.cost.service_us),
            figure(answer.cost.database_us),
            figure(answer.cost.redis_us),
            times(median),
            format!("{min:.2} – {max:.2}"),
            figure(answer.p99_ms),
            times(answer.p99_growth),
            answer.batch.map_or(String::new(), figure),
        ]
    };
    let orders = figures
        .growth
        .iter()
        .map(|level| row("an order", level, &level.order));
    let refusals = figures
        .growth
        .iter()
        .map(|level| row("a refusal", level, &level.refusal));
    table(&titles, &orders.chain(refusals).collect::<Vec<_>>())
}

fn memory(figures: &Figures) -> String {
    let memory = &figures.memory;
    let rows = [
        ("a session", "Redis", memory.session_redis),
        (
            "an idle keep-alive connection",
            "the instance",
            memory.connection_instance,
        ),
        (
            "an order with its index entries",
            "the database",
            memory.order_database,
        ),
    ];
    let rows = rows.map(|(what, place, size)| vec![what.to_owned(), place.to_owned(), bytes(size)]);
    table(&["", "in", ">memory"], &rows)
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
