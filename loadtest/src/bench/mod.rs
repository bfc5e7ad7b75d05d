//! `./dev bench`: measures the ratios of docs/BENCHMARKS.md side by side, audits every run, and
//! writes a report.
//!
//! It measures over HTTP, as clients do, except where a ratio is about a library ([`micro`]). The baselines are
//! servers of this program ([`baseline`]).

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use seckill_loadtest::options::service;
use workload::live::Progress;
use workload::{Access, Target};

mod against;
pub mod baseline;
mod command;
mod durable;
mod environment;
mod generator;
mod memory;
mod micro;
mod monitoring;
mod ratios;
mod report;
mod rounds;
mod runs;
mod sales;
mod scale;
mod servers;

use environment::{Buyers, Environment, MAIN};
use memory::InstanceMemory;
use report::{Conditions, Report};
use rounds::Settings;
use runs::Runner;
use servers::Servers;

/// What to measure, and where.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Three short rounds, under three minutes; figures not fit for publishing
    #[arg(long)]
    quick: bool,
    /// Instead of the ratios: the cost of an order and of a refusal as instances, open sales, orders and sessions grow, and
    /// the memory of each; under ten minutes, with --quick under three (a tenth of the orders and sessions)
    #[arg(long, conflicts_with_all = ["only", "buyers"])]
    scale: bool,
    /// Instead of the ratios: four strategies on three databases that it starts: without a binary log, with one, with a
    /// semi-synchronous replica; under five minutes
    #[arg(long, conflicts_with_all = ["only", "buyers", "scale"])]
    durable: bool,
    /// With --scale: write docs/scale.json and the tables of docs/BENCHMARKS.md and docs/SCALING.md; with --durable: its
    /// table of docs/BENCHMARKS.md; in the checkout this was built in
    #[arg(long)]
    write: bool,
    /// Number of interleaved rounds [default: 5; with --quick: 3, of --scale and --durable 2]
    #[arg(long)]
    rounds: Option<usize>,
    /// Duration of each run, in milliseconds, at least 100 [default: 2500, of --scale and --durable 1200; with --quick: 1000
    /// and 600]
    #[arg(long, value_name = "MS")]
    run_ms: Option<u64>,
    /// Measure only these ratios, by number, such as P1,6 [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NUMBERS", value_parser = ratios::number)]
    only: Vec<String>,
    /// Measure this node as well, in the same rounds: a Java node, or an older build. It must run on the benchmark's database
    /// and Redis: the stack's servers, database seckill_bench (made by the first run), Redis database 9. May be repeated
    #[arg(long, value_name = "URL", conflicts_with_all = ["scale", "durable"])]
    against: Vec<Target>,
    /// Strategy of the sales that --against is asked for; `stream` for a Java node of the final stage
    #[arg(long, value_name = "NAME", default_value = "group-commit", requires = "against")]
    against_strategy: String,
    /// Number of signed-in buyers [default: 100000; with --quick: 50000]
    #[arg(long)]
    buyers: Option<usize>,
    /// Database connections of the baseline "one transaction per order"
    #[arg(long, default_value_t = 32)]
    pool: u32,
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
    /// The stack's Redis, as a URL; the benchmark uses database number 9 on that server
    #[arg(long, env = "REDIS_URL", hide_env_values = true)]
    redis_url: String,
}

/// Measures what was asked for, and writes the report.
///
/// # Errors
/// A server cannot be started, fails or is refused by the audit.
pub async fn run(args: BenchArgs) -> anyhow::Result<()> {
    let (rounds, ms) = match (args.scale || args.durable, args.quick) {
        (false, false) => (5, 2500),
        (false, true) => (3, 1000),
        (true, false) => (5, 1200),
        (true, true) => (2, 600),
    };
    let rounds = args.rounds.unwrap_or(rounds).max(1);
    let duration = Duration::from_millis(args.run_ms.unwrap_or(ms).max(100));
    let seckill = std::path::absolute(args.seckill)?;
    std::fs::create_dir_all(&args.out)?;
    let folder = args.out.canonicalize()?;
    let access = Access {
        database_url: args.database_url,
        redis_url: args.redis_url,
        // Only the instances started here know it.
        admin_token: "token-of-the-benchmark".to_owned(),
        time_zone: chrono_tz::Asia::Shanghai,
        key_names: workload::keys::KeyNames::default(),
    };
    if args.durable {
        let settings = durable::Settings { rounds, duration, write: args.write };
        return durable::run(access, seckill, folder, &settings).await;
    }
    ensure!(args.scale || !args.write, "--write goes with --scale or --durable");
    if args.scale {
        let (quick, write) = (args.quick, args.write);
        let settings = scale::Settings { rounds, duration, quick, write };
        return scale::run(access, seckill, folder, &settings).await;
    }
    let node = |target: &Target| against::Node::new(target, &args.against_strategy);
    let against = args.against.iter().map(node).collect::<anyhow::Result<_>>()?;
    let settings = Settings { rounds, duration, only: args.only.into_iter().collect() };
    let environment =
        Environment::prepare(access, seckill, folder, MAIN).await.context("preparing")?;
    let count = args.buyers.unwrap_or(if args.quick { 50_000 } else { 100_000 });
    Progress::Stderr.say(&format!("signing in {count} buyers"));
    let buyers = Buyers::sign_in(&environment, count).await.context("signing in")?;
    let outcome = tokio::select! {
        measured = measure(&environment, &buyers, &settings, args.pool, against) => measured,
        signal = tokio::signal::ctrl_c() => {
            signal.map_err(Into::into).and_then(|()| Err(anyhow::anyhow!("interrupted")))
        }
    };
    buyers.sign_out(&environment).await.context("signing out")?;
    outcome
}

async fn measure(
    environment: &Environment,
    buyers: &Buyers,
    settings: &Settings,
    pool: u32,
    against: Vec<against::Node>,
) -> anyhow::Result<()> {
    let began = Instant::now();
    let publisher = servers::instance(environment, "publisher", &[]).await?;
    let servers = Servers::start(environment, buyers, pool).await?;
    environment.delete_orders().await?;
    let target = publisher.target.clone();
    let mut runner = Runner { environment, buyers, publisher: target, runs: Vec::new() };
    let results = rounds::measure(&mut runner, &servers, &against, settings).await?;
    rounds::other_strategies(&mut runner, &servers, settings).await?;
    let memory = InstanceMemory::measure(environment, &servers.one).await?;
    let rounds = (settings.rounds, settings.duration);
    let conditions = Conditions::gather(environment, rounds, began.elapsed()).await?;
    let report = Report::new(conditions, results, runner.runs, memory);
    let folder = &environment.folder;
    std::fs::write(folder.join("report.json"), serde_json::to_string_pretty(&report)? + "\n")?;
    println!("{report}");
    println!("Report: {}", folder.join("report.json").display());
    Ok(())
}
