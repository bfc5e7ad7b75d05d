//! Chaos test: sales on two instances while servers are killed, stopped and emptied and replies get lost, drawn at
//! random from a seed that is printed; after each, every reply is checked against every row.
//!
//! Everything is private: a MariaDB, a Redis and two processes of the real binary, in a temporary folder,
//! gone at the end. From the bottom up:
//!
//! - [`redis_data`], [`instance`]: what a fault does to Redis' data and to a process of the service.
//! - [`faults`], [`buyers`]: what is drawn from the seed.
//! - [`test_cluster`]: all servers together, and the faults injected into them.
//! - [`verdict`], [`round`], [`recovery`]: what is measured; [`report`] prints it.
//!
//! The seed draws what is tried and when. What meets what is up to the machine, so a repeated round is
//! the same trial and need not be the same run.

use std::path::PathBuf;

use clap::{Args, value_parser};

use ladder::Strategy;
use workload::{Error, order_rows::OrderRows};

pub mod buyers;
pub mod faults;
pub mod instance;
pub mod recovery;
pub mod redis_data;
pub mod report;
pub mod round;
pub mod test_cluster;
pub mod verdict;

use recovery::After;
use report::Report;
use round::{Round, RoundOptions};
use test_cluster::TestCluster;
use verdict::RoundVerdict;

/// The strategies that are tried unless others are asked for: those whose guarantees hold under faults, as
/// far as the ladder has them.
pub const STRATEGIES: [&str; 3] = ["reentrant-lock", "group-commit", "stream"];

/// Options of a chaos run.
#[derive(Debug, Clone, Args)]
pub struct ChaosOptions {
    /// Sales to run; the strategies take turns
    #[arg(long, default_value_t = 30, value_parser = value_parser!(u32).range(1..=10_000))]
    pub rounds: u32,
    /// The seed of the faults, their times and the buyers' [default: a random one, which is printed]
    #[arg(long, default_value_t = rand::random_range(1..1_000_000), hide_default_value = true)]
    pub seed: u64,
    /// Only this one of the rounds, to repeat it; recoveries are left out
    #[arg(long, value_name = "ROUND", value_parser = value_parser!(u32).range(1..=10_000))]
    pub only_round: Option<u32>,
    /// The strategies [default: all whose guarantees hold under faults]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub strategies: Vec<String>,
    /// Buyers of a sale, three attempts each
    #[arg(long, default_value_t = 600, value_parser = value_parser!(u32).range(4..=20_000))]
    pub buyers: u32,
    /// How often to measure each recovery of throughput; 0 for not at all
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u32).range(..=100))]
    pub recoveries: u32,
    /// The service's binary [default: `seckill` beside this one]
    #[arg(long = "seckill", value_name = "FILE", default_value_os_t = beside(), hide_default_value = true)]
    pub program: PathBuf,
}

/// `seckill` in the folder of this program.
fn beside() -> PathBuf {
    std::env::current_exe().unwrap_or_default().with_file_name("seckill")
}

/// Runs all rounds, passing each to `shown` as it ends.
///
/// # Errors
/// An [`Error`] of the set-up, also a server that does not come back after a fault.
pub async fn run(options: &ChaosOptions, mut shown: impl FnMut(&Round)) -> Result<Report, Error> {
    let known = |name: &&str| name.parse::<Strategy>().is_ok();
    let mut strategies = options.strategies.clone();
    if strategies.is_empty() {
        strategies = STRATEGIES.iter().filter(|name| known(name)).map(|&s| s.to_owned()).collect();
    }
    let cluster = TestCluster::start(&options.program).await?;
    let order_rows = OrderRows::open(&cluster.access.database_url).await?;
    let mut rounds = Vec::new();
    let turns = strategies.len().max(1);
    for number in 1..=options.rounds.max(options.only_round.unwrap_or(0)) {
        if options.only_round.is_some_and(|only| only != number) {
            continue;
        }
        let index = number as usize - 1;
        let options = RoundOptions {
            seed: options.seed,
            number,
            strategy: strategies[index % turns].clone(),
            turn: u32::try_from(index / turns).unwrap_or(u32::MAX),
            buyers: options.buyers as usize,
        };
        let round = round::run(&cluster, &order_rows, &options).await.inspect_err(|_| {
            if let Ok(logs) = cluster.save_logs() {
                eprintln!("round {number}: the servers' logs are in {}", logs.display());
            }
        })?;
        shown(&round);
        rounds.push(round);
    }
    let mut recoveries = Vec::new();
    if options.recoveries > 0 && options.only_round.is_none() {
        cluster.start_instances(false).await?;
        for strategy in &strategies {
            for after in [After::InstanceKill, After::RedisWipe] {
                for _ in 0..options.recoveries {
                    let number = u32::try_from(recoveries.len()).unwrap_or(u32::MAX);
                    recoveries.push(recovery::measure(&cluster, strategy, after, number).await?);
                }
            }
        }
    }
    check_again(&order_rows, &mut rounds).await?;
    let mut report =
        Report { scenario: "chaos", seed: options.seed, rounds, recoveries, logs: None };
    if !report.is_clean() {
        report.logs = Some(cluster.save_logs()?);
    }
    Ok(report)
}

/// Checks every round once more at the very end: what was refused must not have happened later.
async fn check_again(order_rows: &OrderRows, rounds: &mut [Round]) -> Result<(), Error> {
    for round in rounds {
        let snapshot = order_rows.read(round.voucher_id).await?;
        let again = RoundVerdict::of(&round.outcome, &snapshot);
        if round.verdict.is_clean() && !again.is_clean() {
            round.verdict = again;
        }
    }
    Ok(())
}
