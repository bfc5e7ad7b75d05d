//! The command line: flags, environment, defaults. Turns words into options, runs nothing.

use std::path::PathBuf;

use crate::{
    bench::{BenchArgs, baseline::Baseline},
    chaos::ChaosOptions,
    judge::JudgeOptions,
    lab::LabOptions,
    options::Run,
    plan::options::PlanOptions,
    rolling::RollingOptions,
    shop_cache,
};
use clap::{Args, Parser, Subcommand, builder::PossibleValuesParser};
use clap_complete::Shell;
use strategies::Strategy;
use workload::{Environment, burst::BurstOptions, comparison::document::Setting};

/// Drives flash sales and reads of shops, and checks every reply.
///
/// Exit code: 0 clean, 1 a violation (or a strategy that does not keep its guarantees; of `bench` any error), 2 an error of
/// usage or set-up, or nothing proved. `eval "$(./dev env)"` sets the variables for the private stack.
#[derive(Debug, Parser)]
#[command(name = "loadtest", version)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    #[command(flatten)]
    Load(Box<Scenario>),
    /// Servers and baselines of its own, measured side by side: the ratios of docs/BENCHMARKS.md
    Bench(BenchArgs),
    /// Print the completions of a shell: source <(loadtest completions bash)
    Completions {
        #[allow(missing_docs)] // The help lists the shells.
        shell: Shell,
    },
    /// Serve a baseline of the benchmark
    #[command(hide = true)]
    Baseline(Baseline),
}

#[derive(Debug, Subcommand)]
pub enum Scenario {
    /// One sale, and all buyers at once; then every reply is checked
    Burst(Run<BurstArgs>),
    /// The demonstration: every strategy on one instance and on several
    Ladder(Run<BurstOptions>),
    /// Two strategies side by side, with a report that shows why one breaks
    Compare(CompareArgs),
    /// The page that runs comparisons, on which faults can be injected meanwhile: http://127.0.0.1:8089/lab
    Lab(LabOptions),
    /// Reads of shops, and what their cache promises: stampede, penetration, avalanche, updates, read
    #[command(subcommand)]
    Cache(shop_cache::Scenario),
    /// Servers of its own, killed, stopped, emptied and cut off in the middle of sales
    Chaos(Run<ChaosOptions>),
    /// Servers of its own, all instances restarted in turn under load behind a balancer: no purchase may fail
    Rolling(Run<RollingOptions>),
    /// Judge your own node of hm-dianping, at any stage, in any language: what breaks, an example, which chapter mends it
    Judge(Run<JudgeOptions>),
    /// How a sale of any size goes, and which machines it needs, by formulas, without any server
    Plan(PlanOptions),
    /// Publish one sale and print its voucher's id (for wrk, JMeter or curl)
    Publish(PublishArgs),
}

/// Accepts the name of a strategy. The service would refuse any other name too, but only when the sale is published.
fn strategy() -> PossibleValuesParser {
    PossibleValuesParser::new(Strategy::ALL.map(Strategy::name))
}

#[derive(Debug, Args)]
pub struct BurstArgs {
    /// The sale's strategy
    #[arg(long, default_value = "reentrant-lock", value_name = "NAME", value_parser = strategy())]
    pub strategy: String,
    #[command(flatten)]
    pub burst: BurstOptions,
}

#[derive(Debug, Args)]
pub struct CompareArgs {
    #[command(flatten)]
    pub setting: Setting,
    /// Write the report as one HTML file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write everything, every attempt included, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    #[command(flatten)]
    pub environment: Environment,
}

#[derive(Debug, Args)]
pub struct PublishArgs {
    /// Vouchers on sale
    #[arg(long, default_value_t = 100)]
    pub stock: u32,
    /// The sale's strategy
    #[arg(long, default_value = "reentrant-lock", value_name = "NAME", value_parser = strategy())]
    pub strategy: String,
    #[command(flatten)]
    pub environment: Environment,
}
