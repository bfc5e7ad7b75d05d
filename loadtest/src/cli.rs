//! The command line: flags, environment, defaults. Turns words into options, runs nothing.

use std::{path::PathBuf, sync::Arc, time::Duration};

use crate::{
    chaos::ChaosOptions, ladder::LadderOptions, options::Run, plan::options::PlanOptions,
    rolling::RollingOptions, shop_cache,
};
use clap::{Args, Parser, Subcommand};
use workload::{
    Access, Target,
    burst::{BurstOptions, BuyerSource},
    live::{Live, Progress},
};

pub mod compare;

use crate::bench::{BenchArgs, baseline::Baseline};
use compare::CompareArgs;

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
    Load(Scenario),
    /// Servers and baselines of its own, measured side by side: the ratios of docs/BENCHMARKS.md
    Bench(BenchArgs),
    /// Serve a baseline of the benchmark
    #[command(subcommand, hide = true)]
    Baseline(Baseline),
}

#[derive(Debug, Subcommand)]
pub enum Scenario {
    /// One sale, and all buyers at once; then every reply is checked
    Burst(Run<BurstArgs>),
    /// The demonstration: every strategy on one instance and on several
    Ladder(Run<LadderArgs>),
    /// Two strategies side by side, with a report that shows why one breaks
    Compare(CompareArgs),
    /// Reads of shops, and what their cache promises: stampede, penetration, avalanche, updates, read
    #[command(subcommand)]
    Cache(shop_cache::Scenario),
    /// Servers of its own, killed, stopped, emptied and cut off in the middle of sales
    Chaos(Run<ChaosOptions>),
    /// Servers of its own, all instances restarted in turn under load behind a balancer: no purchase may fail
    Rolling(Run<RollingOptions>),
    /// How a sale of any size goes, and which machines it needs, by formulas, without any server
    Plan(Run<PlanOptions>),
    /// Publish one sale and print its voucher's id (for wrk, JMeter or curl)
    Publish(PublishArgs),
}

#[derive(Debug, Args)]
struct TargetsArgs {
    /// Base URLs; the attempts of one user go to them in turn, publishing to the first
    #[arg(
        long,
        env = "TARGETS",
        value_delimiter = ',',
        value_name = "URL",
        default_value = "http://127.0.0.1:8080"
    )]
    targets: Vec<Target>,
}

#[derive(Debug, Args)]
pub struct GeneratorArgs {
    /// Keep-alive connections, all targets together [default: one per attempt, at most 1024]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    connections: Option<u32>,
    /// Time limit of one attempt, in seconds
    #[arg(long, default_value_t = 10, value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(1..=600))]
    timeout: u64,
    /// Longest wait for in-flight purchases before the check, in seconds
    #[arg(long, alias = "settle", default_value_t = 30, value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(1..=600))]
    wait_limit: u64,
    /// Take buyers from this file (one session token per line) instead of signing them in
    #[arg(long, value_name = "FILE")]
    tokens_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct BurstArgs {
    /// Users, each with a session of its own
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    buyers: u32,
    /// Simultaneous attempts of each user
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    tries: u32,
    /// Vouchers on sale
    #[arg(long, default_value_t = 100)]
    stock: u32,
    /// The sale's strategy
    #[arg(long, default_value = "reentrant-lock", value_name = "NAME")]
    strategy: String,
    #[command(flatten)]
    targets: TargetsArgs,
    #[command(flatten)]
    generator: GeneratorArgs,
    #[command(flatten)]
    access: Access,
}

#[derive(Debug, Args)]
pub struct LadderArgs {
    /// One instance alone
    #[arg(long, default_value = "http://127.0.0.1:8081", value_name = "URL")]
    one: Target,
    /// The proxy before several instances
    #[arg(long, default_value = "http://127.0.0.1:8080", value_name = "URL")]
    two: Target,
    /// How many instances are behind the proxy
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..))]
    instances: u32,
    /// Users, signed in once for all sales; at least three times the stock
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    buyers: u32,
    /// Simultaneous attempts of each user
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    tries: u32,
    /// Vouchers on sale, in each sale
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    stock: u32,
    #[command(flatten)]
    generator: GeneratorArgs,
    #[command(flatten)]
    access: Access,
}

#[derive(Debug, Args)]
pub struct PublishArgs {
    /// Vouchers on sale
    #[arg(long, default_value_t = 100)]
    pub stock: u32,
    /// The sale's strategy
    #[arg(long, default_value = "reentrant-lock", value_name = "NAME")]
    pub strategy: String,
    #[command(flatten)]
    targets: TargetsArgs,
    #[command(flatten)]
    pub access: Access,
}

impl PublishArgs {
    /// Where to publish.
    pub fn target(&self) -> Option<&Target> {
        self.targets.targets.first()
    }
}

impl BurstArgs {
    pub fn options(self) -> BurstOptions {
        let mut options = burst(self.generator, self.access, self.buyers, self.tries, self.stock);
        options.targets = self.targets.targets;
        options.strategy = self.strategy;
        options
    }
}

impl LadderArgs {
    pub fn options(self) -> LadderOptions {
        let burst = burst(self.generator, self.access, self.buyers, self.tries, self.stock);
        LadderOptions { burst, one: self.one, two: self.two, instances: self.instances }
    }
}

fn burst(
    generator: GeneratorArgs,
    access: Access,
    buyers: u32,
    tries: u32,
    stock: u32,
) -> BurstOptions {
    let buyers = buyers as usize;
    BurstOptions {
        buyers: match generator.tokens_file {
            Some(file) => BuyerSource::File(file, buyers),
            None => BuyerSource::SignIn(buyers),
        },
        tries,
        stock,
        connections: generator.connections.map(|connections| connections as usize),
        timeout: Duration::from_secs(generator.timeout),
        wait_limit: Duration::from_secs(generator.wait_limit),
        progress: Progress::Stderr,
        live: Arc::new(Live::default()),
        ..BurstOptions::new(access, Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
