//! The report of the ratios, for the terminal and for the documents.

use workload::markdown::{self, figure};
use workload::table::render;

use crate::bench::ratios::{
    BARE, LOCKED, LOCKED_16, LOCKED_1024, ORDERS, ORDERS_16, ORDERS_1024, ORDERS_DIRECT,
    ORDERS_KNOWN, ORDERS_PROXIED, ORDERS_UNKNOWN, RATIOS, Ratio, SOLD_OUT, STREAM, TRANSACTION,
};
use crate::bench::run::*;
use crate::spread::Spread;

/// The columns of the table of runs.
const COLUMNS: &[Figure] = &[
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

/// The columns of the same table in docs/BENCHMARKS.md, and its runs.
const DOCUMENT_COLUMNS: &[Figure] = &[
    ORDERS_PER_S,
    ANSWERS_PER_S,
    P50,
    P99,
    SERVICE_US,
    DATABASE_US,
    REDIS_US,
    CLIENT_US,
];
const DOCUMENT_RUNS: &[&str] = &[
    BARE,
    SOLD_OUT,
    ORDERS_UNKNOWN,
    ORDERS_KNOWN,
    ORDERS_16,
    ORDERS,
    ORDERS_1024,
    ORDERS_DIRECT,
    ORDERS_PROXIED,
    STREAM,
    LOCKED_16,
    LOCKED,
    LOCKED_1024,
    TRANSACTION,
];

/// The table of each README: its title, and the names of its rows.
const READMES: [(&str, &str, [&str; 3]); 2] = [
    (
        "../README.md",
        "orders a second",
        [
            "`group-commit`, to buyers who come for the first time",
            "`group-commit`, to the same buyers again",
            "`reentrant-lock`",
        ],
    ),
    (
        "../README.zh-CN.md",
        "每秒订单数",
        [
            "`group-commit`，买家都是第一次来",
            "`group-commit`，同一批买家再来",
            "`reentrant-lock`",
        ],
    ),
];

/// The columns of the table of ratios.
const RATIO_TITLES: [&str; 6] = ["#", "ratio", ">median (range)", ">floor", ">aim", "status"];

/// The report of these rounds, and of the resident memory of the first instance, in bytes: just started, and at its peak.
/// All runs have passed the audit: otherwise there would be no report.
pub fn text(conditions: &str, rounds: &[Vec<Run>], memory: [u64; 2]) -> String {
    let [idle, peak] = memory.map(|bytes| figure(bytes as f64 / 1e6));
    format!(
        "\n{}\nµs: processor time of one answer.\n\n{}\n\
         Memory of an instance: {idle} MB idle, {peak} MB at its peak.\n\
         All {} runs passed the audit.\n{conditions}",
        run_table(rounds),
        render(&RATIO_TITLES, &ratio_rows(rounds)),
        rounds.iter().flatten().count(),
    )
}

/// Writes the ratios and the cost of an answer into docs/BENCHMARKS.md, and the orders a second into both READMEs.
pub fn write(conditions: &str, rounds: &[Vec<Run>]) -> Result<(), workload::Error> {
    let benchmarks = markdown::path("BENCHMARKS.md");
    let ratios = markdown::table(&RATIO_TITLES, &ratio_rows(rounds));
    markdown::write(&benchmarks, "ratios", &format!("{ratios}\n{conditions}\n"))?;
    let titles = run_titles(DOCUMENT_COLUMNS);
    let titles: Vec<_> = titles.iter().map(String::as_str).collect();
    let rows: Vec<_> = DOCUMENT_RUNS
        .iter()
        .map(|name| run_row(name, rounds, DOCUMENT_COLUMNS))
        .collect();
    markdown::write(&benchmarks, "answers", &markdown::table(&titles, &rows))?;
    for (file, title, names) in READMES {
        let runs = [ORDERS_UNKNOWN, ORDERS_KNOWN, LOCKED];
        let rows: Vec<_> = names
            .iter()
            .zip(runs)
            .map(|(name, run)| vec![(*name).to_owned(), median_of(run, rounds, ORDERS_PER_S)])
            .collect();
        let title = format!(">{title}");
        let table = markdown::table(&["", &title], &rows);
        markdown::write(&markdown::path(file), "orders", &table)?;
    }
    Ok(())
}

/// The table of runs: medians over the rounds.
fn run_table(rounds: &[Vec<Run>]) -> String {
    let titles = run_titles(COLUMNS);
    let titles: Vec<_> = titles.iter().map(String::as_str).collect();
    let mut names = Vec::new();
    for run in rounds.iter().flatten() {
        if !names.contains(&run.name) {
            names.push(run.name);
        }
    }
    let rows: Vec<_> = names
        .into_iter()
        .map(|name| run_row(name, rounds, COLUMNS))
        .collect();
    render(&titles, &rows)
}

fn run_titles(columns: &[Figure]) -> Vec<String> {
    let mut titles = vec!["run (medians)".to_owned()];
    titles.extend(columns.iter().map(|Figure(name, _)| format!(">{name}")));
    titles
}

fn run_row(name: &str, rounds: &[Vec<Run>], columns: &[Figure]) -> Vec<String> {
    let mut row = vec![name.to_owned()];
    row.extend(
        columns
            .iter()
            .map(|column| median_of(name, rounds, *column)),
    );
    row
}

fn median_of(name: &str, rounds: &[Vec<Run>], column: Figure) -> String {
    let runs = rounds.iter().flatten().filter(|run| run.name == name);
    match column.median(runs) {
        0.0 => "–".to_owned(),
        median => figure(median),
    }
}

fn ratio_rows(rounds: &[Vec<Run>]) -> Vec<Vec<String>> {
    RATIOS
        .iter()
        .map(|ratio| ratio_row(ratio, rounds))
        .collect()
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
