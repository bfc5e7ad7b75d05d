//! The tables of docs/SCALING.md, among them the comparison of the formulas with a measured sale; and those of measured
//! growth and memory in docs/BENCHMARKS.md.

use crate::{
    options::defaults,
    plan::{
        figures::{Answer, Figures, Level},
        model::{self, Model},
        options::PlanOptions,
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
pub fn all(figures: &Figures) -> Result<[(&'static str, &'static str, String); 6], Error> {
    Ok([
        ("SCALING.md", "plan-sizes", sizes(figures)?),
        ("SCALING.md", "plan-additions", additions(figures)?),
        ("SCALING.md", "plan-comparison", compared(figures)?),
        ("BENCHMARKS.md", "scale-growth", growth(figures)),
        ("BENCHMARKS.md", "scale-memory", memory(figures)),
        ("BENCHMARKS.md", "scale-conditions", conditions(figures)),
    ])
}

/// Writes them into the documents.
pub fn write(figures: &Figures) -> Result<(), Error> {
    for (document, name, table) in all(figures)? {
        markdown::write(&markdown::path(document), name, &table)?;
    }
    Ok(())
}

/// The figures with these names of a plan, which are the titles of columns.
fn row(figures: &Figures, options: &PlanOptions, titles: &[&str]) -> Result<Vec<String>, Error> {
    let plan = model::plan(figures, options)?;
    let cell = |title: &&str| {
        let name = title.trim_start_matches('>');
        let found = plan.iter().find(|(known, _)| *known == name);
        found.map_or("–".to_owned(), |(_, text)| text.clone())
    };
    Ok(titles.iter().map(cell).collect())
}

fn sizes(figures: &Figures) -> Result<String, Error> {
    let mut rows = Vec::new();
    for (buyers, stock) in SIZES {
        let cells = row(figures, &PlanOptions { buyers, stock, ..defaults() }, &OF_SIZE)?;
        rows.push([vec![count(buyers), count(stock)], cells].concat());
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
            let cells = row(figures, &options, &OF_ADDITION)?;
            rows.push([vec![count(buyers), name.to_owned()], cells].concat());
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
    let orders = figures.growth.iter().map(|level| grown("an order", level, &level.order));
    let refusals = figures.growth.iter().map(|level| grown("a refusal", level, &level.refusal));
    let rows: Vec<_> = orders.chain(refusals).collect();
    table(&titles, &rows)
}

fn grown(kind: &str, level: &Level, answer: &Answer) -> Vec<String> {
    let [median, least, most] = answer.growth;
    let times = |value: f64| match value > EXPECTED {
        true => format!("**{value:.2}**"),
        false => format!("{value:.2}"),
    };
    vec![
        format!("{kind}, {} {}", count(level.count), level.dimension),
        figure(answer.cost.service_us),
        figure(answer.cost.database_us),
        figure(answer.cost.redis_us),
        times(median),
        format!("{least:.2} – {most:.2}"),
        figure(answer.p99_ms),
        times(answer.p99_growth),
        answer.batch.map_or(String::new(), figure),
    ]
}

fn memory(figures: &Figures) -> String {
    let memory = &figures.memory;
    let rows = [
        ("a session", "Redis", memory.session_redis),
        ("a session in memory", "the instance", memory.session_instance),
        ("an open sale", "the instance", memory.sale_instance),
        ("an idle keep-alive connection", "the instance", memory.connection_instance),
        ("an order with its index entries", "the database", memory.order_database),
    ];
    let rows = rows.map(|(what, place, size)| vec![what.to_owned(), place.to_owned(), bytes(size)]);
    table(&["", "in", ">memory"], &rows)
}

fn conditions(figures: &Figures) -> String {
    let unfit = if figures.quick { "**A quick run, not fit for conclusions.** " } else { "" };
    format!("{unfit}{}\n", figures.conditions)
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
