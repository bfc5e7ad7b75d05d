//! The price of durability (`./dev bench --durable`): the same sales on three databases of its own, beside each other, in
//! interleaved rounds. The databases differ in what a confirmed order survives; all flush the log at each commit.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use seckill_loadtest::plan::document;
use testkit::database_server::{DatabaseServer, Settings as DatabaseSettings};
use testkit::process::TemporaryFolder;
use testkit::replicated_database::{ReplicatedDatabase, Replication};
use workload::Access;
use workload::live::Progress;

use crate::bench::environment::{Buyers, Databases, Environment};
use crate::bench::ratios::{figure, median};
use crate::bench::report::Conditions;
use crate::bench::runs::{Plan, Run, Runner};
use crate::bench::sales;
use crate::bench::servers::{self, Server};

/// Buyers of a run.
const BUYERS: usize = 100_000;

const STRATEGIES: [&str; 4] = ["row-lock", "reentrant-lock", "group-commit", "stream"];

/// What a confirmed order survives, and the first number of the Redis databases of the benchmark's own.
const SETUPS: [&str; 3] =
    ["no binary log", "binary log, `sync_binlog=1`", "a replica has it (`AFTER_SYNC`)"];
const REDIS: u8 = 9;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Rounds that count.
    pub rounds: usize,
    /// Duration of each run.
    pub duration: Duration,
    /// Write the table into docs/BENCHMARKS.md.
    pub write: bool,
}

/// A database with an instance of the service on it. In the order in which they are to end.
struct Setup {
    instance: Server,
    environment: Environment,
    buyers: Buyers,
    _database: Database,
}

/// Runs until it is dropped.
enum Database {
    Single(Box<DatabaseServer>),
    Replicated(Box<ReplicatedDatabase>),
}

impl Database {
    async fn start(number: usize, folder: Arc<TemporaryFolder>) -> anyhow::Result<Self> {
        let arguments: &[&str] = match number {
            0 => &[],
            1 => &["--log-bin=binlog", "--sync-binlog=1", "--server-id=1"],
            _ => {
                let replication = Replication::SemiSynchronous;
                let pair = ReplicatedDatabase::start_in(folder, replication).await?;
                return Ok(Database::Replicated(Box::new(pair)));
            }
        };
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let settings = DatabaseSettings { arguments, ..DatabaseSettings::default() };
        let server = DatabaseServer::start_with(folder, settings).await?;
        Ok(Database::Single(Box::new(server)))
    }

    fn url(&self) -> String {
        match self {
            Database::Single(server) => server.url(),
            // Without the proxy, which the others do not have either.
            Database::Replicated(pair) => pair.primary().url(),
        }
    }
}

/// Measures, and prints the table.
///
/// # Errors
/// A server fails, or a run fails the audit.
pub async fn run(
    access: Access,
    seckill: PathBuf,
    folder: PathBuf,
    settings: &Settings,
) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut setups = Vec::new();
    for number in 0..SETUPS.len() {
        setups.push(setup(number, access.clone(), &seckill, &folder).await?);
    }
    let measured = tokio::select! {
        measured = measure(&setups, settings) => measured,
        signal = tokio::signal::ctrl_c() => {
            signal.map_err(Into::into).and_then(|()| Err(anyhow::anyhow!("interrupted")))
        }
    };
    for Setup { environment, buyers, .. } in &setups {
        buyers.sign_out(environment).await.context("signing out")?;
    }
    let rounds = (settings.rounds, settings.duration);
    let conditions = Conditions::gather(&setups[0].environment, rounds, began.elapsed()).await?;
    let text = format!("{}\n{}\n", measured?, conditions.text());
    println!("{text}");
    if settings.write {
        document::write(&document::path("BENCHMARKS.md"), "durable", &text)?;
        println!("Written: docs/BENCHMARKS.md");
    }
    Ok(())
}

async fn setup(
    number: usize,
    mut access: Access,
    seckill: &Path,
    folder: &Path,
) -> anyhow::Result<Setup> {
    say(&format!("starting a database: {}", SETUPS[number]));
    let files = Arc::new(TemporaryFolder::new()?);
    let database = Database::start(number, files).await.context("starting a database")?;
    access.database_url = database.url();
    let redis = REDIS + u8::try_from(number)?;
    let databases = Databases { database: "seckill", redis, keeps_orders: false };
    let (seckill, folder) = (seckill.to_owned(), folder.to_owned());
    let environment = Environment::prepare(access, seckill, folder, databases).await?;
    // Its sales have the ids of earlier ones.
    environment.flush_redis().await?;
    let buyers = Buyers::sign_in(&environment, BUYERS).await.context("signing in")?;
    let instance = servers::instance(&environment, &format!("durable-{number}"), &[]).await?;
    Ok(Setup { instance, environment, buyers, _database: database })
}

/// The table: a row for each strategy and database.
async fn measure(setups: &[Setup], settings: &Settings) -> anyhow::Result<String> {
    let mut commits_ms = Vec::new();
    for Setup { environment, .. } in setups {
        let one = sales::commit_time(&environment.pool).await?;
        commits_ms.push(one.as_secs_f64() * 1e3);
    }
    let mut rows = Vec::new();
    for strategy in STRATEGIES {
        let mut runs = vec![Vec::new(); setups.len()];
        // The first round warms up.
        for round in 0..=settings.rounds {
            for (setup, runs) in setups.iter().zip(&mut runs) {
                let run = one_run(setup, strategy, round, settings.duration).await?;
                if round > 0 {
                    runs.push(run);
                }
            }
        }
        for (number, of) in runs.iter().enumerate() {
            rows.push(row(strategy, SETUPS[number], commits_ms[number], of, &runs[0]));
        }
    }
    let titles = [
        "strategy",
        "a confirmed order survives the loss of the server where",
        ">orders/s",
        ">÷ without binary log (range)",
        ">p99, ms",
        ">processor time an order, µs",
        ">one commit, ms",
    ];
    Ok(document::table(&titles, &rows))
}

async fn one_run(
    setup: &Setup,
    strategy: &'static str,
    round: usize,
    duration: Duration,
) -> anyhow::Result<Run> {
    let Setup { instance, environment, buyers, .. } = setup;
    let publisher = instance.target.clone();
    let mut runner = Runner { environment, buyers, publisher, runs: Vec::new() };
    let run = runner.run(&Plan::new(strategy, instance, duration), round).await?;
    say(&format!("    {strategy}: {} orders/s", figure(run.orders_per_s)));
    Ok(run)
}

/// Medians; `first` are the runs without a binary log of the same rounds.
fn row(strategy: &str, setup: &str, commit_ms: f64, runs: &[Run], first: &[Run]) -> Vec<String> {
    let of = |value: &dyn Fn(&Run) -> f64| {
        let values: Vec<f64> = runs.iter().map(value).collect();
        median(&values).map_or("–".to_owned(), figure)
    };
    let pairs = runs.iter().zip(first);
    let shares: Vec<f64> =
        pairs.map(|(run, first)| run.orders_per_s / first.orders_per_s).collect();
    let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
    let most = shares.iter().copied().fold(0.0, f64::max);
    let share = median(&shares).unwrap_or(f64::NAN);
    vec![
        format!("`{strategy}`"),
        setup.to_owned(),
        of(&|run| run.orders_per_s),
        format!("{share:.2} ({least:.2}–{most:.2})"),
        of(&|run| run.latency.p99_ms),
        of(&|run| run.cpu.servers_us()),
        figure(commit_ms),
    ]
}

fn say(text: &str) {
    Progress::Stderr.say(text);
}
