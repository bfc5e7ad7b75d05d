//! The report of the ratios: tables for the terminal, JSON for programs.

use serde_json::{Value, json};
use workload::markdown::figure;
use workload::table::render;

use crate::bench::ratios::{BELOW, RATIOS, Ratio};
use crate::bench::run::*;
use crate::spread::{Spread, median};

/// All that was measured.
#[derive(Debug)]
pub struct Report {
    /// Machine, versions and settings.
    pub conditions: String,
    /// The runs of each round. Each passed the audit, or there would be no report.
    pub rounds: Vec<Vec<Run>>,
    /// Resident memory of the first instance, in bytes: just started, and the most it ever had.
    pub memory: [u64; 2],
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
    fn runs(&self) -> impl Iterator<Item = &Run> {
        self.rounds.iter().flatten()
    }

    fn values(&self, ratio: &Ratio) -> Option<Spread> {
        Spread::of(self.rounds.iter().filter_map(|runs| ratio.value(runs)))
    }

    /// The table of runs: medians over the rounds.
    fn run_table(&self) -> String {
        let mut names: Vec<&str> = Vec::new();
        for run in self.runs() {
            if !names.contains(&run.name) {
                names.push(run.name);
            }
        }
        let row = |name: &&str| {
            let cell = |Figure(_, value)| {
                let runs = self.runs().filter(|run| run.name == *name);
                match median(runs.map(value)) {
                    0.0 => "–".to_owned(),
                    value => figure(value),
                }
            };
            [(*name).to_owned()].into_iter().chain(COLUMNS.map(cell)).collect()
        };
        let titles = COLUMNS.map(|Figure(name, _)| format!(">{name}"));
        let titles = ["run (medians)"].into_iter().chain(titles.iter().map(String::as_str));
        let rows: Vec<_> = names.iter().map(row).collect();
        render(&titles.collect::<Vec<_>>(), &rows)
    }

    fn ratio_table(&self) -> String {
        let row = |ratio: &Ratio| {
            let sign = if ratio.lower_is_better { "≤ " } else { "" };
            let dash = || "–".to_owned();
            let bound = |bound: Option<f64>| bound.map_or_else(dash, |it| format!("{sign}{it}"));
            let values = self.values(ratio);
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
        let is_below = |ratio: &&Ratio| ratio.status(self.values(ratio)) == BELOW;
        let below: Vec<_> = RATIOS.iter().filter(is_below).map(|ratio| ratio.number).collect();
        let floors = match below.is_empty() {
            true => "none that was measured is missed".to_owned(),
            false => format!("MISSED by {}", below.join(", ")),
        };
        let [idle, peak] = self.memory.map(|bytes| figure(bytes as f64 / 1e6));
        format!(
            "\n{}\nµs: processor time of one answer.\n\n{}\nFloors: {floors}.\n\
             Memory of an instance: {idle} MB idle, {peak} MB at its peak.\n\
             All {} runs passed the audit.\n{}",
            self.run_table(),
            self.ratio_table(),
            self.runs().count(),
            self.conditions,
        )
    }

    pub fn json(&self) -> Value {
        let ratios =
            RATIOS.iter().map(|ratio| (ratio.number.to_owned(), json!(self.values(ratio))));
        json!({
            "conditions": self.conditions,
            "ratios": ratios.collect::<serde_json::Map<_, _>>(),
            "memory": self.memory,
            "rounds": self.rounds,
        })
    }
}
