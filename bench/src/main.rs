//! `./dev bench`: the ratios of docs/BENCHMARKS.md, measured by their rules, with the audit after each run.
//!
//! Not part of the service: the baselines it is held against live here. It measures over HTTP, as clients
//! do, except where a ratio is about a library of the crate ([`inner`]).

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use workload::Access;

mod baseline;
mod client;
mod ground;
mod inner;
mod ratios;
mod report;
mod rounds;
mod runs;
mod scenes;
mod stack;
mod watch;

use baseline::{bare, plain};
use ground::Ground;
use rounds::{Servers, Settings};
use runs::Runner;

// The same allocator as the service, for the baselines.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures the service's ratios side by side and writes a report.
#[derive(Debug, Parser)]
#[command(name = "bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure
    Run(RunArgs),
    /// Serve the bare route until ended
    BaselineBare {
        /// Address to listen on
        #[arg(long)]
        bind: SocketAddr,
    },
    /// Serve the tuned one-transaction-per-order until ended
    BaselinePlain {
        /// Address to listen on
        #[arg(long)]
        bind: SocketAddr,
        /// File of lines `token user`
        #[arg(long)]
        buyers: PathBuf,
        /// Connections to the database
        #[arg(long)]
        connections: u32,
        #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
        database_url: String,
        #[arg(long, env = "REDIS_URL", hide_env_values = true)]
        redis_url: String,
    },
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Three short rounds, under three minutes; for every day, not for publishing
    #[arg(long)]
    quick: bool,
    /// Rounds [default: 5, quick: 3]
    #[arg(long)]
    rounds: Option<usize>,
    /// Length of one run, in milliseconds [default: 2500, quick: 1000]
    #[arg(long, value_name = "MS")]
    run_ms: Option<u64>,
    /// Only these ratios, such as 1,6
    #[arg(long, value_delimiter = ',', value_name = "NUMBERS")]
    only: Vec<String>,
    /// Signed-in buyers [default: 100000, quick: 50000]
    #[arg(long)]
    buyers: Option<usize>,
    /// Connections of the one-transaction-per-order to the database
    #[arg(long, default_value_t = 32)]
    pool: u32,
    /// Folder for report.html, report.json and the logs of what is started
    #[arg(long, default_value = "bench-report", value_name = "FOLDER")]
    out: PathBuf,
    /// The service's binary [default: `seckill` beside this program]
    #[arg(long)]
    seckill: Option<PathBuf>,
    /// The stack's database; the benchmark makes one of its own beside it
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    database_url: String,
    /// The stack's Redis; the benchmark uses database number 9 there
    #[arg(long, env = "REDIS_URL", hide_env_values = true)]
    redis_url: String,
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    match Cli::parse().command {
        Command::BaselineBare { bind } => bare::serve(bind).await?,
        Command::BaselinePlain { bind, buyers, connections, database_url, redis_url } => {
            let settings = plain::Settings { bind, database_url, redis_url, connections };
            plain::serve(&settings, &buyers).await?;
        }
        Command::Run(args) => {
            return tokio::select! {
                ended = run(args) => ended,
                signal = tokio::signal::ctrl_c() => {
                    signal?;
                    anyhow::bail!("interrupted")
                }
            };
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn run(args: RunArgs) -> anyhow::Result<ExitCode> {
    let began = Instant::now();
    let (rounds, ms, buyers) = if args.quick { (3, 1000, 50_000) } else { (5, 2500, 100_000) };
    let settings = Settings {
        rounds: args.rounds.unwrap_or(rounds).max(1),
        lasting: Duration::from_millis(args.run_ms.unwrap_or(ms).max(100)),
        only: args.only.into_iter().collect::<BTreeSet<_>>(),
    };
    let seckill = match args.seckill {
        Some(path) => path,
        None => std::env::current_exe()?.with_file_name("seckill"),
    };
    std::fs::create_dir_all(&args.out)?;
    let folder = args.out.canonicalize()?;
    let access = Access {
        database_url: args.database_url,
        redis_url: args.redis_url,
        // Of the instances started here and nobody else's.
        admin_token: "benchmark".to_owned(),
        time_zone: chrono_tz::Asia::Shanghai,
    };
    let ground = Ground::prepare(access, seckill, folder.clone()).await.context("preparing")?;
    let buyers = ground.buyers(args.buyers.unwrap_or(buyers)).await.context("signing in")?;
    let publisher = stack::instance(&ground, "publisher", &[]).await?;
    let target = publisher.target();
    let mut runner =
        Runner { ground: &ground, buyers: &buyers, publisher: target, runs: Vec::new() };
    let servers = Servers::start(&runner, args.pool).await?;
    ground.forget_orders().await?;

    let sheet = rounds::measure(&mut runner, &servers, &settings).await?;
    let scenes = scenes::play(&mut runner, &servers, settings.lasting).await?;
    let facts = report::Facts::gather(&ground, &settings, began.elapsed()).await?;
    let report = report::Report::new(facts, sheet, runner.runs, scenes);
    report.write(&folder)?;
    println!("{report}");
    println!("Report: {}", folder.join("report.html").display());
    Ok(ExitCode::SUCCESS)
}
