//! The report's contents: tables for the terminal, JSON for programs.

use std::collections::BTreeMap;
use std::fmt;
use std::process::Command;
use std::time::Duration;

use serde::Serialize;
use workload::table::render;

use crate::bench::environment::{Environment, Versions};
use crate::bench::memory::InstanceMemory;
use crate::bench::ratios::{Ratio, RatioStatus, figure, median};
use crate::bench::rounds::{self, Results};
use crate::bench::runs::Run;

/// Machine, versions and settings of the measurement.
#[derive(Debug, Clone, Serialize)]
pub struct Conditions {
    /// Local time at the end.
    pub date: String,
    /// The checkout's commit, with a `+` where it has uncommitted changes.
    pub commit: String,
    /// The processor's name.
    pub processor: String,
    /// Processors, shared by servers and load generator.
    pub cores: usize,
    /// The machine's load averages at the end.
    pub load: String,
    /// Database and Redis.
    pub versions: Versions,
    /// Rounds.
    pub rounds: usize,
    /// Duration of a run, in milliseconds.
    pub run_ms: u128,
    /// Duration of the whole benchmark, in seconds.
    pub took_s: u64,
}

impl Conditions {
    /// Reads them from the machine and its servers.
    ///
    /// # Errors
    /// A server fails.
    pub async fn gather(
        environment: &Environment,
        (rounds, duration): (usize, Duration),
        took: Duration,
    ) -> anyhow::Result<Self> {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let cpu = read("/proc/cpuinfo");
        let processor = cpu.lines().find_map(|line| line.strip_prefix("model name"));
        let load: Vec<_> = read("/proc/loadavg").split(' ').take(3).map(str::to_owned).collect();
        Ok(Self {
            date: chrono::Local::now().format("%Y-%m-%d %H:%M").to_string(),
            commit: commit(),
            processor: processor.unwrap_or("unknown").trim_start_matches([':', ' ', '\t']).into(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            load: load.join(" "),
            versions: environment.versions().await?,
            rounds,
            run_ms: duration.as_millis(),
            took_s: took.as_secs(),
        })
    }

    /// One paragraph of text.
    pub fn text(&self) -> String {
        format!(
            "{} · commit {} · {} cores ({}), load {} · MariaDB/MySQL {} with \
             innodb_flush_log_at_trx_commit={} · Redis {} with appendfsync {} · {} rounds of {} ms a run · \
             {} s in all. The load generator shares these cores with all servers.",
            self.date,
            self.commit,
            self.cores,
            self.processor,
            self.load,
            self.versions.database,
            self.versions.flush_at_commit,
            self.versions.redis,
            self.versions.redis_sync,
            self.rounds,
            self.run_ms,
            self.took_s,
        )
    }
}

fn commit() -> String {
    let git = |args: &[&str]| {
        let folder = env!("CARGO_MANIFEST_DIR");
        let output = Command::new("git").arg("-C").arg(folder).args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    match (git(&["rev-parse", "--short", "HEAD"]), git(&["status", "--porcelain", "-uno"])) {
        (Some(commit), Some(changes)) if changes.is_empty() => commit,
        (Some(commit), _) => commit + "+",
        _ => "unknown".to_owned(),
    }
}

/// All that was measured.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Machine, versions and settings.
    pub conditions: Conditions,
    /// The ratios.
    pub ratios: Vec<Measured>,
    /// Rates measured without HTTP: name, and per second in each round.
    pub figures: Vec<(&'static str, Vec<f64>)>,
    /// Memory of an instance.
    pub memory: InstanceMemory,
    /// Medians of the same ratios of other nodes (`--against`), by address and number.
    pub against: BTreeMap<String, BTreeMap<&'static str, f64>>,
    /// Every run. Each passed the audit, or there would be no report.
    pub runs: Vec<Run>,
}

/// A ratio with its median, range and status.
#[derive(Debug, Serialize)]
pub struct Measured {
    /// The ratio.
    #[serde(flatten)]
    pub ratio: Ratio,
    /// Its median.
    pub median: Option<f64>,
    /// Smallest and largest.
    pub range: Option<(f64, f64)>,
    /// The median compared with floor and aim.
    pub status: RatioStatus,
}

impl Report {
    /// Adds medians, ranges and statuses.
    pub fn new(
        conditions: Conditions,
        results: Results,
        runs: Vec<Run>,
        memory: InstanceMemory,
    ) -> Self {
        let measured = |ratio: Ratio| Measured {
            median: ratio.median(),
            range: ratio.range(),
            status: ratio.status(),
            ratio,
        };
        let ratios = results.ratios.into_iter().map(measured).collect();
        let medians = |values: BTreeMap<&'static str, Vec<f64>>| {
            values.into_iter().filter_map(|(number, of)| Some((number, median(&of)?))).collect()
        };
        let against = results.against.into_iter().map(|(node, of)| (node, medians(of))).collect();
        Self { conditions, ratios, figures: results.figures, memory, against, runs }
    }

    /// The columns of the table of ratios: one more for each other node.
    fn ratio_columns(&self) -> Vec<String> {
        let others = self.against.keys().map(|node| format!(">{node}"));
        RATIO_COLUMNS.map(str::to_owned).into_iter().chain(others).collect()
    }

    /// The rows of the table of ratios.
    fn ratio_rows(&self) -> Vec<Vec<String>> {
        let row = |measured: &Measured| {
            let (ratio, at_most) = (&measured.ratio, measured.ratio.lower_is_better);
            let bound = |value: Option<f64>| match value {
                Some(value) if at_most => format!("≤ {value}"),
                Some(value) => value.to_string(),
                None => "–".to_owned(),
            };
            let range = |(low, high)| format!("{} – {}", figure(low), figure(high));
            let of_others = self
                .against
                .values()
                .map(|of| of.get(ratio.number).map_or("–".to_owned(), |median| figure(*median)));
            let ours = [
                ratio.number.to_owned(),
                ratio.what.to_owned(),
                measured.median.map_or("–".to_owned(), figure),
                measured.range.map_or("–".to_owned(), range),
                bound(ratio.floor),
                bound(ratio.aim),
                measured.status.text().to_owned(),
            ];
            ours.into_iter().chain(of_others).collect()
        };
        self.ratios.iter().map(row).collect()
    }

    /// Number and next limit of the ratios that were measured and are short of their aim.
    fn limits(&self) -> Vec<(&'static str, &'static str)> {
        let is_short = |measured: &&Measured| match measured.status {
            RatioStatus::Floor | RatioStatus::Below => true,
            RatioStatus::Reported => measured.ratio.aim.is_some(),
            RatioStatus::Aim | RatioStatus::NotAvailable => false,
        };
        let limit = |measured: &Measured| (measured.ratio.number, measured.ratio.limit);
        self.ratios.iter().filter(is_short).map(limit).collect()
    }

    /// Whether the floors hold: first by processor time, which hardly depends on what else the machine does, then by
    /// rates and times, which do.
    fn floors(&self) -> [String; 2] {
        [(true, "processor time"), (false, "rates and times")].map(|(of_processor_time, name)| {
            let below: Vec<_> = self
                .ratios
                .iter()
                .filter(|measured| measured.ratio.is_of_processor_time() == of_processor_time)
                .filter(|measured| measured.status == RatioStatus::Below)
                .map(|measured| measured.ratio.number)
                .collect();
            match below.is_empty() {
                true => format!("Floors of {name}: none that was measured is missed."),
                false => format!("Floors of {name}: MISSED by {}.", below.join(", ")),
            }
        })
    }

    /// Whether the floors hold, ratios 1 and 2 by processor time, what bounds ratio 12, memory, and why a ratio is missing:
    /// one sentence each.
    fn remarks(&self) -> Vec<String> {
        let of = |name| self.median_of(name, |run| run.cpu.servers_us());
        let [group, lock, single] =
            ["group-commit", "reentrant-lock", "one transaction per order"].map(of);
        let by_cpu = group.zip(lock.zip(single)).map(|(group, (lock, single))| {
            format!(
                "By processor time of all servers per order, which other load hardly changes, ratio 1 is {} and \
                 ratio 2 is {}.",
                figure(lock / group),
                figure(single / group)
            )
        });
        let proxy = self.proxy_bound().map(|bound| {
            let bound = figure(bound);
            format!("If nginx added to an order only what it adds to a bare reply, ratio 12 would be {bound}.")
        });
        let note = |measured: &Measured| {
            measured.ratio.note.as_ref().map(|note| format!("{}: {note}.", measured.ratio.number))
        };
        let others = [self.memory.text()].into_iter().chain(self.ratios.iter().filter_map(note));
        self.floors().into_iter().chain(by_cpu).chain(proxy).chain(others).collect()
    }

    /// What ratio 12 would be on busy processors if nginx added as little to an order as to a bare reply.
    fn proxy_bound(&self) -> Option<f64> {
        let of = |name| self.median_of(name, |run| run.cpu.all_us());
        let order = of(rounds::ORDERS_DIRECT)?;
        Some(order / (order + of(rounds::BARE_PROXIED)? - of(rounds::BARE_DIRECT)?))
    }

    /// The median of `value` over the runs called `name`.
    fn median_of(&self, name: &str, value: impl Fn(&Run) -> f64) -> Option<f64> {
        let runs = self.runs.iter().filter(|run| run.name == name);
        median(&runs.map(value).collect::<Vec<_>>())
    }

    /// The rows of the table of runs: medians over the rounds.
    fn run_rows(&self) -> Vec<Vec<String>> {
        let mut names: Vec<&str> = Vec::new();
        for run in &self.runs {
            if !names.contains(&run.name) {
                names.push(run.name);
            }
        }
        let values: [fn(&Run) -> f64; 10] = [
            |run| run.orders_per_s,
            |run| run.answers_per_s,
            |run| run.latency.p50_ms,
            |run| run.latency.p99_ms,
            |run| run.latency.p999_ms,
            |run| run.latency.max_ms,
            |run| run.cpu.service_us,
            |run| run.cpu.database_us,
            |run| run.cpu.redis_us,
            |run| run.cpu.client_us,
        ];
        let row = |name: &&str| {
            let shown = |value| match self.median_of(name, value).map(figure) {
                Some(text) if text != figure(0.0) => text,
                _ => "–".to_owned(),
            };
            [(*name).to_owned()].into_iter().chain(values.map(shown)).collect()
        };
        let mut rows: Vec<Vec<String>> = names.iter().map(row).collect();
        for (name, values) in &self.figures {
            let mut row = vec!["–".to_owned(); RUN_COLUMNS.len()];
            row[0] = (*name).to_owned();
            row[2] = median(values).map_or("–".to_owned(), figure);
            rows.push(row);
        }
        rows
    }
}

/// Columns of every table of ratios, as [`render`] takes them.
const RATIO_COLUMNS: [&str; 7] = ["#", "ratio", ">median", ">range", ">floor", ">aim", "status"];

/// Columns of [`Report::run_rows`].
const RUN_COLUMNS: [&str; 11] = [
    "run (medians)",
    ">orders/s",
    ">answers/s",
    ">p50 ms",
    ">p99 ms",
    ">p99.9 ms",
    ">max ms",
    ">service µs",
    ">database µs",
    ">Redis µs",
    ">client µs",
];

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{}\n", render(&RUN_COLUMNS, &self.run_rows()))?;
        writeln!(f, "µs: processor time of one answer.\n")?;
        let columns = self.ratio_columns();
        let columns: Vec<_> = columns.iter().map(String::as_str).collect();
        writeln!(f, "{}", render(&columns, &self.ratio_rows()))?;
        let limits = self.limits();
        if !limits.is_empty() {
            writeln!(f, "The next limit, by profile, where an aim is not reached:")?;
            limits.iter().try_for_each(|(number, limit)| writeln!(f, "  {number:<4} {limit}"))?;
            writeln!(f)?;
        }
        self.remarks().iter().try_for_each(|remark| writeln!(f, "{remark}"))?;
        writeln!(f, "All {} runs passed the audit.\n{}", self.runs.len(), self.conditions.text())
    }
}
