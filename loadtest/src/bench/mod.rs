//! `./dev bench`: measures the ratios of docs/BENCHMARKS.md side by side, on servers of its own, audits every run, and
//! prints a report.
//!
//! It measures over HTTP, as clients do, except where a ratio is about a library ([`micro`]). The baselines are
//! servers of this program ([`baseline`]).

use std::time::Instant;

use anyhow::ensure;
use workload::publish;

use crate::interrupt::or_interrupted;

pub mod baseline;
mod durable;
mod environment;
mod generator;
mod growth;
mod micro;
mod options;
mod plan;
mod ratios;
mod report;
mod run;
mod sales;
mod scale;
mod servers;
mod steps;

use environment::{BUYERS, Environment, PLAIN};
pub use options::BenchArgs;
use servers::Servers;

/// Measures what was asked for, and prints the report.
pub async fn run(mut args: BenchArgs) -> anyhow::Result<()> {
    ensure!(
        args.only.is_empty() || !args.write,
        "--write needs all ratios: leave --only out"
    );
    std::fs::create_dir_all(&args.out)?;
    // The servers run in this folder.
    args.out = args.out.canonicalize()?;
    args.seckill = std::path::absolute(&args.seckill)?;
    or_interrupted(async {
        match &args {
            BenchArgs { durable: true, .. } => durable::run(&args).await,
            BenchArgs { scale: true, .. } => scale::run(&args).await,
            _ => measure(&args).await,
        }
    })
    .await
}

/// Measures the ratios.
async fn measure(args: &BenchArgs) -> anyhow::Result<()> {
    let began = Instant::now();
    let environment = &Environment::open(args, PLAIN, BUYERS).await?;
    let servers = &Servers::start(environment).await?;
    let [first, _] = &servers.instances;
    let [idle, _] = first.memory()?;
    // Makes the shop that is read.
    publish::flash_sale(&environment.access, &first.target, "group-commit", 1).await?;
    let rounds = steps::measure(environment, servers).await?;
    let [_, peak] = first.memory()?;
    let conditions = environment.conditions(began.elapsed()).await?;
    println!("{}", report::text(&conditions, &rounds, [idle, peak]));
    if args.write {
        report::write(&conditions, &rounds)?;
        println!("Written: docs/BENCHMARKS.md, README.md and README.zh-CN.md");
    }
    Ok(())
}
