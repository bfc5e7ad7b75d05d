//! The report of the ratios, for the terminal.

use std::collections::BTreeSet;

use workload::markdown::figure;
use workload::table::render;

use crate::bench::ratios::{RATIOS, Ratio};
use crate::bench::run::*;
use crate::spread::Spread;

/// The columns of the table of runs.
const COLUMNS: [Figure; 10] = [
    ORDERS_PER_S,
    ANSWERS_PER_S,
    P50,
    P99,
    P999,
    LONGEST,
    SERVICE_US,
    DATABASE_US,
    REDIS_US,
    CLIENT_US,
];

/// The report of these rounds, and of the resident memory of the first instance, in bytes: just started, and the most it
/// ever had. Each run passed the audit, or there would be no report.
pub fn text(conditions: &str, rounds: &[Vec<Run>], memory: [u64; 2]) -> String {
    let [idle, peak] = memory.map(|bytes| figure(bytes as f64 / 1e6));
    format!(
        "\n{}\nµs: processor time of one answer.\n\n{}\n\
         Memory of an instance: {idle} MB idle, {peak} MB at its peak.\n\
         All {} runs passed the audit.\n{conditions}",
        run_table(rounds),
        ratio_table(rounds),
        rounds.iter().flatten().count(),
    )
}

/// The table of runs: medians over the rounds.
fn run_table(rounds: &[Vec<Run>]) -> String {
    let runs = || rounds.iter().flatten();
    let row = |name: &str| {
        let cell = |column: Figure| match column.median(runs().filter(|run| run.name == name)) {
            0.0 => "–".to_owned(),
            value => figure(value),
        };
        [name.to_owned()]
            .into_iter()
            .chain(COLUMNS.map(cell))
            .collect()
    };
    let titles = COLUMNS.map(|Figure(name, _)| format!(">{name}"));
    let titles = ["run (medians)"]
        .into_iter()
        .chain(titles.iter().map(String::as_str));
    let mut seen = BTreeSet::new();
    let names = runs().map(|run| run.name).filter(|name| seen.insert(*name));
    let rows: Vec<_> = names.map(row).collect();
    render(&titles.collect::<Vec<_>>(), &rows)
}

fn ratio_table(rounds: &[Vec<Run>]) -> String {
    let row = |ratio: &Ratio| {
        let sign = if ratio.lower_is_better { "≤ " } else { "" };
        let dash = || "–".to_owned();
        let bound = |bound: Option<f64>| bound.map_or_else(dash, |it| format!("{sign}{it}"));
        let values = Spread::of(rounds.iter().filter_map(|runs| ratio.value(runs)));
        vec![
            ratio.number.to_owned(),
            ratio.what(),
            values.map_or_else(dash, |it| it.to_string()),
            bound(ratio.floor),
            bound(ratio.aim),
            ratio.status(values).to_owned(),
        ]
    };
    let titles = ["#", "ratio", ">median (range)", ">floor", ">aim", "status"];
    render(&titles, &RATIOS.iter().map(row).collect::<Vec<_>>())
}
