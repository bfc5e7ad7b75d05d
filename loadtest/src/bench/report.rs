//! The report of the ratios: tables for the terminal, JSON for programs.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use workload::markdown::figure;
use workload::table::render;

use crate::bench::ratios::{RATIOS, Ratio};
use crate::bench::run::*;
use crate::spread::{Spread, median};

/// All that was measured.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Machine, versions and settings.
    conditions: String,
    /// By number; `None` of those that were not measured.
    ratios: BTreeMap<&'static str, Option<Spread>>,
    /// Resident memory of the first instance, in bytes: just started, and the most it ever had.
    memory: [u64; 2],
    /// The runs of each round. Each passed the audit, or there would be no report.
    rounds: Vec<Vec<Run>>,
}

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

impl Report {
    pub fn new(conditions: String, rounds: Vec<Vec<Run>>, memory: [u64; 2]) -> Self {
        let values = |ratio: &Ratio| Spread::of(rounds.iter().filter_map(|runs| ratio.value(runs)));
        let ratios = RATIOS.iter().map(|ratio| (ratio.number, values(ratio))).collect();
        Self { conditions, ratios, memory, rounds }
    }

    /// The table of runs: medians over the rounds.
    fn run_table(&self) -> String {
        let runs = || self.rounds.iter().flatten();
        let row = |name: &str| {
            let cell =
                |Figure(_, value)| match median(runs().filter(|run| run.name == name).map(value)) {
                    0.0 => "–".to_owned(),
                    value => figure(value),
                };
            [name.to_owned()].into_iter().chain(COLUMNS.map(cell)).collect()
        };
        let titles = COLUMNS.map(|Figure(name, _)| format!(">{name}"));
        let titles = ["run (medians)"].into_iter().chain(titles.iter().map(String::as_str));
        let mut seen = BTreeSet::new();
        let names = runs().map(|run| run.name).filter(|name| seen.insert(*name));
        let rows: Vec<_> = names.map(row).collect();
        render(&titles.collect::<Vec<_>>(), &rows)
    }

    fn ratio_table(&self) -> String {
        let row = |ratio: &Ratio| {
            let sign = if ratio.lower_is_better { "≤ " } else { "" };
            let dash = || "–".to_owned();
            let bound = |bound: Option<f64>| bound.map_or_else(dash, |it| format!("{sign}{it}"));
            let values = self.ratios[ratio.number];
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

    pub fn text(&self) -> String {
        let [idle, peak] = self.memory.map(|bytes| figure(bytes as f64 / 1e6));
        format!(
            "\n{}\nµs: processor time of one answer.\n\n{}\n\
             Memory of an instance: {idle} MB idle, {peak} MB at its peak.\n\
             All {} runs passed the audit.\n{}",
            self.run_table(),
            self.ratio_table(),
            self.rounds.iter().flatten().count(),
            self.conditions,
        )
    }
}
