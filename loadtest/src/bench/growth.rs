//! The tables of `./dev bench --scale` in docs/BENCHMARKS.md: cost as something grows, and memory.

use workload::markdown::{self, bytes, figure};

use crate::bench::run::{P99, Run, SERVERS_US, median_cost};
use crate::spread::{Spread, compare_rounds};

/// Growth beyond this is set in bold, and explained in the document.
const EXPECTED: f64 = 1.2;

const TITLES: [&str; 9] = [
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

/// One size of what grows: its name, the runs of orders, those of refusals.
pub type Size = (String, [Vec<Run>; 2]);

/// The table of growth, of several things that grow, each from its smallest size on: all rows of orders, then all of refusals.
pub fn table(things: &[Vec<Size>]) -> String {
    let mut rows = Vec::new();
    for (kind, what) in ["an order", "a refusal"].into_iter().enumerate() {
        for sizes in things {
            for (name, runs) in sizes {
                rows.push(row(
                    format!("{what}, {name}"),
                    &runs[kind],
                    &sizes[0].1[kind],
                ));
            }
        }
    }
    markdown::table(&TITLES, &rows)
}

/// A row: the medians of `runs`, and of their quotients with the run of `smallest` in the same round.
fn row(name: String, runs: &[Run], smallest: &[Run]) -> Vec<String> {
    let times = |value: f64| {
        if value > EXPECTED {
            format!("**{value:.2}**")
        } else {
            format!("{value:.2}")
        }
    };
    let cost = median_cost(runs);
    let growth = compare_rounds(runs, smallest, SERVERS_US.1);
    let p99_growth = compare_rounds(runs, smallest, P99.1);
    let batch = Spread::from_values(runs.iter().filter_map(|run| run.batch));
    vec![
        name,
        figure(cost.service_us),
        figure(cost.database_us),
        figure(cost.redis_us),
        times(growth.median),
        format!("{:.2} – {:.2}", growth.min, growth.max),
        figure(P99.median(runs)),
        times(p99_growth.median),
        batch.map_or(String::new(), |batch| figure(batch.median)),
    ]
}

/// The table of memory, from bytes.
pub fn memory_table(session: f64, connection: f64, order: f64) -> String {
    let rows = [
        ("a session", "Redis", session),
        ("an idle keep-alive connection", "the instance", connection),
        ("an order with its index entries", "the database", order),
    ];
    let rows = rows.map(|(what, place, size)| vec![what.to_owned(), place.to_owned(), bytes(size)]);
    markdown::table(&["", "in", ">memory"], &rows)
}
