//! What came out: a table for the terminal, JSON for programs, and one HTML file for people.

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde::Serialize;
use workload::table::render;

use crate::ground::{Ground, Servers};
use crate::ratios::{Ratio, Standing, figure};
use crate::rounds::{Settings, Sheet};
use crate::runs::Run;
use crate::scenes::Scenes;

mod html;

/// On what it was measured.
#[derive(Debug, Clone, Serialize)]
pub struct Facts {
    /// Local time of the end.
    pub date: String,
    /// The checkout's commit; `+` where it has changes.
    pub commit: String,
    /// The processor's name.
    pub processor: String,
    /// Processors, shared by servers and client.
    pub cores: usize,
    /// The machine's load averages at the end.
    pub load: String,
    /// Database and Redis.
    pub servers: Servers,
    /// Rounds.
    pub rounds: usize,
    /// Length of a run, in milliseconds.
    pub run_ms: u128,
    /// How long it all took, in seconds.
    pub took_s: u64,
}

impl Facts {
    /// Asks the machine.
    pub async fn gather(
        ground: &Ground,
        settings: &Settings,
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
            servers: ground.servers().await?,
            rounds: settings.rounds,
            run_ms: settings.lasting.as_millis(),
            took_s: took.as_secs(),
        })
    }

    /// In a paragraph.
    pub fn text(&self) -> String {
        format!(
            "{} · commit {} · {} cores ({}), load {} · MariaDB/MySQL {} with \
             innodb_flush_log_at_trx_commit={} · Redis {} with appendfsync {} · {} rounds of {} ms a run · \
             {} s in all. The client shares these cores with all servers.",
            self.date,
            self.commit,
            self.cores,
            self.processor,
            self.load,
            self.servers.database,
            self.servers.flush_at_commit,
            self.servers.redis,
            self.servers.redis_sync,
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

/// Everything.
#[derive(Debug, Serialize)]
pub struct Report {
    /// On what.
    pub facts: Facts,
    /// The ratios.
    pub ratios: Vec<Measured>,
    /// Rates of what was measured without HTTP: name, and a second in each round.
    pub figures: Vec<(&'static str, Vec<f64>)>,
    /// What the pictures show.
    pub scenes: Scenes,
    /// Every run; each passed the audit, or there would be no report.
    pub runs: Vec<Run>,
}

/// A ratio and how it stands.
#[derive(Debug, Serialize)]
pub struct Measured {
    /// The ratio.
    #[serde(flatten)]
    pub ratio: Ratio,
    /// Its median.
    pub median: Option<f64>,
    /// Smallest and largest.
    pub range: Option<(f64, f64)>,
    /// Where the median stands.
    pub standing: Standing,
}

impl Report {
    /// Puts together what was measured.
    pub fn new(facts: Facts, sheet: Sheet, runs: Vec<Run>, scenes: Scenes) -> Self {
        let measured = |ratio: Ratio| Measured {
            median: ratio.median(),
            range: ratio.range(),
            standing: ratio.standing(),
            ratio,
        };
        let ratios = sheet.ratios.into_iter().map(measured).collect();
        Self { facts, ratios, figures: sheet.figures, scenes, runs }
    }

    /// Writes `report.json` and `report.html`.
    pub fn write(&self, folder: &Path) -> anyhow::Result<()> {
        std::fs::write(folder.join("report.json"), serde_json::to_string_pretty(self)? + "\n")?;
        std::fs::write(folder.join("report.html"), html::page(self))?;
        Ok(())
    }

    /// Rows of the table of ratios.
    fn rows(&self) -> Vec<Vec<String>> {
        let row = |measured: &Measured| {
            let (ratio, at_most) = (&measured.ratio, measured.ratio.lower_is_better);
            let bound = |value: f64| {
                let value =
                    if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value}") };
                if at_most { format!("≤ {value}") } else { value }
            };
            let range = |(low, high)| format!("{} – {}", figure(low), figure(high));
            vec![
                ratio.number.to_owned(),
                ratio.what.to_owned(),
                measured.median.map_or("–".to_owned(), figure),
                measured.range.map_or("–".to_owned(), range),
                bound(ratio.floor),
                bound(ratio.aim),
                measured.standing.text().to_owned(),
            ]
        };
        self.ratios.iter().map(row).collect()
    }

    /// Number and next limit of the ratios that were measured and are below their aim.
    fn limits(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let short =
            |measured: &&Measured| matches!(measured.standing, Standing::Floor | Standing::Below);
        self.ratios
            .iter()
            .filter(short)
            .map(|measured| (measured.ratio.number, measured.ratio.limit))
    }

    /// What ratios 1 and 2 are by the processor time an order costs in all servers together.
    pub fn cpu_ratios(&self) -> Option<(f64, f64)> {
        let of = |name: &str| {
            let runs = self.runs.iter().filter(|run| run.name == name);
            crate::ratios::median(&runs.map(|run| run.cpu.servers_us()).collect::<Vec<_>>())
        };
        let group = of("group-commit")?;
        Some((of("reentrant-lock")? / group, of("one transaction per order")? / group))
    }

    /// Rows of the footnotes: medians of every kind of run.
    fn footnotes(&self) -> Vec<Vec<String>> {
        let mut names: Vec<&str> = Vec::new();
        for run in &self.runs {
            if !names.contains(&run.name) {
                names.push(run.name);
            }
        }
        let of = |name: &str, value: &dyn Fn(&Run) -> f64| {
            let runs = self.runs.iter().filter(|run| run.name == name);
            let values: Vec<f64> = runs.map(value).collect();
            crate::ratios::median(&values).map_or("–".to_owned(), figure)
        };
        let rows = names.iter().map(|name| {
            let unless_zero =
                |text: String| if text == figure(0.0) { "–".to_owned() } else { text };
            let orders = unless_zero(of(name, &|run| run.orders_per_s));
            vec![
                (*name).to_owned(),
                orders,
                of(name, &|run| run.answers_per_s),
                of(name, &|run| run.latency.p50_ms),
                of(name, &|run| run.latency.p99_ms),
                of(name, &|run| run.latency.p999_ms),
                of(name, &|run| run.latency.max_ms),
                unless_zero(of(name, &|run| run.cpu.service_us)),
                unless_zero(of(name, &|run| run.cpu.database_us)),
                unless_zero(of(name, &|run| run.cpu.redis_us)),
                unless_zero(of(name, &|run| run.cpu.client_us)),
            ]
        });
        let mut rows: Vec<_> = rows.collect();
        for (name, values) in &self.figures {
            let mut row = vec!["–".to_owned(); RUN_COLUMNS.len()];
            row[0] = (*name).to_owned();
            row[2] = crate::ratios::median(values).map_or("–".to_owned(), figure);
            rows.push(row);
        }
        rows
    }
}

/// Columns of [`Report::rows`], as [`render`] takes them.
const RATIO_COLUMNS: [&str; 7] = ["#", "ratio", ">median", ">range", ">floor", ">aim", "verdict"];

/// Columns of [`Report::footnotes`].
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
        writeln!(f, "\n{}\n", render(&RUN_COLUMNS, &self.footnotes()))?;
        writeln!(f, "µs: processor time of one answer.\n")?;
        writeln!(f, "{}", render(&RATIO_COLUMNS, &self.rows()))?;
        if let Some((lock, single)) = self.cpu_ratios() {
            let (lock, single) = (figure(lock), figure(single));
            writeln!(
                f,
                "By processor time of all servers an order, which other load hardly changes: ratio 1 is \
                 {lock}, ratio 2 is {single}."
            )?;
        }
        let limits: Vec<_> = self.limits().collect();
        if !limits.is_empty() {
            writeln!(
                f,
                "\nWhere an aim is not reached, what the profile shows as the next limit:"
            )?;
            limits.iter().try_for_each(|(number, limit)| writeln!(f, "  {number:<4} {limit}"))?;
            writeln!(f)?;
        }
        for measured in &self.ratios {
            if let Some(note) = &measured.ratio.note {
                writeln!(f, "{}: {note}.", measured.ratio.number)?;
            }
        }
        writeln!(f, "All {} runs passed the audit.\n{}", self.runs.len(), self.facts.text())
    }
}
