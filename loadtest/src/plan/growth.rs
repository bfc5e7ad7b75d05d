//! The tables of docs/BENCHMARKS.md: cost as something grows, and memory.

use workload::markdown::{bytes, count, figure, table};

use crate::plan::figures::{Answer, Figures, Level};

/// Growth beyond this is set in bold, and explained in the document.
const EXPECTED: f64 = 1.2;

/// The tables by the names of their places.
pub fn tables(figures: &Figures) -> [(&'static str, String); 3] {
    [
        ("scale-growth", growth(figures)),
        ("scale-memory", memory(figures)),
        ("scale-conditions", conditions(figures)),
    ]
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
    let orders = figures.growth.iter().map(|level| row("an order", level, &level.order));
    let refusals = figures.growth.iter().map(|level| row("a refusal", level, &level.refusal));
    let rows: Vec<_> = orders.chain(refusals).collect();
    table(&titles, &rows)
}

fn row(kind: &str, level: &Level, answer: &Answer) -> Vec<String> {
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
    let rows =
        rows.map(|(what, place, count)| vec![what.to_owned(), place.to_owned(), bytes(count)]);
    table(&["", "in", ">memory"], &rows)
}

fn conditions(figures: &Figures) -> String {
    let unfit = if figures.quick { "**A quick run, not fit for conclusions.** " } else { "" };
    format!("{unfit}{}\n", figures.conditions)
}
