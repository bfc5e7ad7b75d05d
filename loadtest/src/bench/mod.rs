//! `./dev bench`: measures the ratios of docs/BENCHMARKS.md side by side, audits every run, and
//! writes a report.
//!
//! It measures over HTTP, as clients do, except where a ratio is about a library ([`micro`]). The baselines are
//! servers of this program ([`baseline`]).

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::interrupt::or_interrupted;
use crate::options::service;
use anyhow::{Context, ensure};
use clap::Args;
use workload::{Access, publish};

mod audit;
pub mod baseline;
mod conditions;
mod durable;
mod environment;
mod generator;
mod micro;
mod monitoring;
mod plan;
mod ratios;
mod report;
mod rounds;
mod run;
mod sales;
mod scale;
mod servers;
mod settings;
mod steps;

use environment::{BUYERS, Databases, Environment, MAIN};
use report::Report;
use servers::Servers;
use settings::Settings;
use steps::Place;

/// What to measure, and where.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Three short rounds, under three minutes; figures not fit for publishing
    #[arg(long)]
    quick: bool,
    /// Instead of the ratios: the cost of an order and of a refusal as instances, open sales, orders and sessions grow, and
    /// the memory of each; under ten minutes, with --quick under three (a tenth of the orders and sessions)
    #[arg(long, conflicts_with = "only")]
    scale: bool,
    /// Instead of the ratios: four strategies on three databases that it starts: without a binary log, with one, with a
    /// semi-synchronous replica; under five minutes
    #[arg(long, conflicts_with_all = ["only", "scale"])]
    durable: bool,
    /// With --scale: write docs/scale.json and the tables of docs/BENCHMARKS.md and docs/SCALING.md; with --durable: its
    /// table of docs/BENCHMARKS.md; in the checkout this was built in
    #[arg(long)]
    write: bool,
    /// Number of interleaved rounds [default: 5; with --quick: 3, of --scale and --durable 2]
    #[arg(long)]
    rounds: Option<usize>,
    /// Measure only these ratios, by number, such as P1,6 [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NUMBERS", value_parser = ratios::number)]
    only: Vec<String>,
    /// Folder for report.json and the logs of the servers under test; of `./dev bench`: .dev/bench
    // `./dev bench` gives one, which the user's replaces.
    #[arg(long, default_value = "bench-report", value_name = "FOLDER", overrides_with = "out")]
    out: PathBuf,
    /// The service's binary [default: `seckill` beside this one]
    #[arg(long, value_name = "FILE", default_value_os_t = service(), hide_default_value = true)]
    seckill: PathBuf,
    /// The stack's database, as a URL; the benchmark creates its own, seckill_bench, on that server
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    database_url: String,
    /// The stack's Redis, as a URL; the benchmark uses database numbers 9 to 13 on that server
    #[arg(long, env = "REDIS_URL", hide_env_values = true)]
    redis_url: String,
}

/// Measures what was asked for, and writes the report.
pub async fn run(args: BenchArgs) -> anyhow::Result<()> {
    ensure!(args.scale || args.durable || !args.write, "--write goes with --scale or --durable");
    let (rounds, ms) = match (args.scale || args.durable, args.quick) {
        (false, false) => (5, 2500),
        (false, true) => (3, 1000),
        (true, false) => (5, 1200),
        (true, true) => (2, 600),
    };
    std::fs::create_dir_all(&args.out)?;
    let settings = Settings {
        access: Access {
            database_url: args.database_url,
            redis_url: args.redis_url,
            // Only the instances started here know it.
            admin_token: "token-of-the-benchmark".to_owned(),
            time_zone: chrono_tz::Asia::Shanghai,
            key_style: None,
        },
        seckill: std::path::absolute(args.seckill)?,
        folder: args.out.canonicalize()?,
        rounds: args.rounds.unwrap_or(rounds).max(1),
        duration: Duration::from_millis(ms),
        quick: args.quick,
        write: args.write,
    };
    let (outcome, databases): (_, &[Databases]) = if args.durable {
        (or_interrupted(durable::run(&settings)).await, &durable::DATABASES)
    } else if args.scale {
        (or_interrupted(scale::run(&settings)).await, &scale::DATABASES)
    } else {
        (or_interrupted(measure(&settings, &args.only)).await, &[MAIN])
    };
    for databases in databases {
        databases.clear(&settings.access).await.context("emptying the databases")?;
    }
    outcome
}

/// Measures the ratios.
async fn measure(settings: &Settings, only: &[String]) -> anyhow::Result<()> {
    let began = Instant::now();
    let environment = &Environment::open(settings, MAIN, BUYERS).await.context("preparing")?;
    let servers = &Servers::start(environment).await?;
    let [idle, _] = servers.one.memory()?;
    // Makes the shop that is read.
    let access = &environment.settings.access;
    publish::flash_sale(access, &servers.one.target, "group-commit", 1).await?;
    let shop = environment.shop().await?;
    let place = Place { environment, servers, shop };
    let rounds = steps::measure(&place, only).await?;
    let others = match only {
        [] => steps::other_strategies(&place, &rounds[0]).await?,
        _ => Vec::new(),
    };
    let [_, peak] = servers.one.memory()?;
    let conditions = conditions::text(environment, began.elapsed()).await?;
    let report = Report { conditions, rounds, others, memory: [idle, peak] };
    let file = settings.folder.join("report.json");
    std::fs::write(&file, serde_json::to_string_pretty(&report.json())? + "\n")?;
    println!("{}\nReport: {}", report.text(), file.display());
    Ok(())
}
