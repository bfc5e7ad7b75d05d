//! The report of the ratios, for the terminal.

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

/// The report of these rounds, and of the resident memory of the first instance, in bytes: just started, and at its peak.
/// All runs have passed the audit: otherwise there would be no report.
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
    let titles = COLUMNS.map(|Figure(name, _)| format!(">{name}"));
    let titles: Vec<_> = ["run (medians)"]
        .into_iter()
        .chain(titles.iter().map(String::as_str))
        .collect();
    let mut names = Vec::new();
    for run in rounds.iter().flatten() {
        if !names.contains(&run.name) {
            names.push(run.name);
        }
    }
    let rows: Vec<_> = names
        .into_iter()
        .map(|name| run_row(name, rounds))
        .collect();
    render(&titles, &rows)
}

fn run_row(name: &str, rounds: &[Vec<Run>]) -> Vec<String> {
    let mut row = vec![name.to_owned()];
    for column in COLUMNS {
        let runs = rounds.iter().flatten().filter(|run| run.name == name);
        row.push(match column.median(runs) {
            0.0 => "–".to_owned(),
            median => figure(median),
        });
    }
    row
}

fn ratio_table(rounds: &[Vec<Run>]) -> String {
    let titles = ["#", "ratio", ">median (range)", ">floor", ">aim", "status"];
    let rows: Vec<_> = RATIOS
        .iter()
        .map(|ratio| ratio_row(ratio, rounds))
        .collect();
    render(&titles, &rows)
}

fn ratio_row(ratio: &Ratio, rounds: &[Vec<Run>]) -> Vec<String> {
    let sign = if ratio.lower_is_better { "≤ " } else { "" };
    let dash = || "–".to_owned();
    let cell = |bound: Option<f64>| bound.map_or_else(dash, |bound| format!("{sign}{bound}"));
    let spread = Spread::from_values(rounds.iter().filter_map(|runs| ratio.value(runs)));
    vec![
        ratio.number.to_owned(),
        ratio.what(),
        spread.map_or_else(dash, |spread| spread.to_string()),
        cell(ratio.floor),
        cell(ratio.aim),
        ratio.status(spread).to_owned(),
    ]
}
