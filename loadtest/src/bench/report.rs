//! The report of the ratios: tables for the terminal, JSON for programs.

use serde_json::{Value, json};
use workload::markdown::figure;
use workload::table::render;

use crate::bench::against::Node;
use crate::bench::ratios::{BELOW, Figure, RATIOS, Ratio};
use crate::bench::run::Run;
use crate::spread::{Spread, median};

/// All that was measured.
#[derive(Debug)]
pub struct Report<'a> {
    /// Machine, versions and settings.
    pub conditions: String,
    /// The runs of each round. Each passed the audit, or there would be no report.
    pub rounds: Vec<Vec<Run>>,
    /// A run of each strategy that no ratio is about.
    pub others: Vec<Run>,
    /// Resident memory of the first instance, in bytes: just started, and the most it ever had.
    pub memory: [u64; 2],
    /// Nodes of others.
    pub against: &'a [Node],
}

/// The figures of a run by their columns, as [`render`] takes them.
const FIGURES: [(&str, Figure); 10] = [
    (">orders/s", |run| run.orders_per_s),
    (">answers/s", |run| run.answers_per_s),
    (">p50 ms", |run| run.latency.p50_ms),
    (">p99 ms", |run| run.latency.p99_ms),
    (">p99.9 ms", |run| run.latency.p999_ms),
    (">max ms", |run| run.latency.max_ms),
    (">service µs", |run| run.cpu.service_us),
    (">database µs", |run| run.cpu.database_us),
    (">Redis µs", |run| run.cpu.redis_us),
    (">client µs", |run| run.cpu.client_us),
];

impl Report<'_> {
    fn runs(&self) -> impl Iterator<Item = &Run> {
        self.rounds.iter().flatten().chain(&self.others)
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
            let cell = |(_, value): (&str, Figure)| {
                let runs = self.runs().filter(|run| run.name == *name);
                match median(runs.map(value)) {
                    0.0 => "–".to_owned(),
                    value => figure(value),
                }
            };
            [(*name).to_owned()].into_iter().chain(FIGURES.map(cell)).collect()
        };
        let titles = ["run (medians)"].into_iter().chain(FIGURES.map(|(title, _)| title));
        let rows: Vec<_> = names.iter().map(row).collect();
        render(&titles.collect::<Vec<_>>(), &rows)
    }

    /// The table of ratios, with a column for each other node.
    fn ratios(&self) -> String {
        let others: Vec<_> =
            self.against.iter().map(|node| format!(">{}", node.server.target)).collect();
        let ours = ["#", "ratio", ">median (range)", ">floor", ">aim", "status"];
        let columns: Vec<_> = ours.into_iter().chain(others.iter().map(String::as_str)).collect();
        let row = |ratio: &Ratio| {
            let sign = if ratio.lower_is_better { "≤ " } else { "" };
            let dash = || "–".to_owned();
            let bound = |bound: Option<f64>| bound.map_or_else(dash, |it| format!("{sign}{it}"));
            let values = self.values(ratio);
            let shown = |values: Option<Spread>| values.map_or_else(dash, |it| it.to_string());
            let mut row = vec![
                ratio.number.to_owned(),
                ratio.what.to_owned(),
                shown(values),
                bound(ratio.floor),
                bound(ratio.aim),
                ratio.status(values).to_owned(),
            ];
            row.extend(self.against.iter().map(|node| {
                let of = |runs: &Vec<Run>| ratio.value_of_node(node.runs, runs);
                // Without a known process there is no processor time.
                let known = self.rounds.iter().filter_map(of).filter(|value| !value.is_nan());
                shown(Spread::of(known))
            }));
            row
        };
        render(&columns, &RATIOS.iter().map(row).collect::<Vec<_>>())
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
            self.ratios(),
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
            "others": self.others,
        })
    }
}
