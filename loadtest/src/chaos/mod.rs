//! Chaos test: sales on two instances under faults. Servers are killed, stopped, emptied and filled, connections and
//! replies get lost, and clocks are stepped. The faults are drawn from a seed, which is printed. After each round every
//! reply is checked against every row.
//!
//! Everything is private, in a temporary folder that is gone at the end: one MariaDB or a pair; one Redis, a master that
//! Sentinel watches, or a cluster; and two processes of the real binary. From the bottom up:
//!
//! - `options`: what is asked for, also which servers there are.
//! - `redis_data`, `instance`, `redis_servers`, `test_cluster`: the servers.
//! - `changes`, `verdict`, `sale`: a sale, and what is checked of it; `operator` adds to it and publishes others.
//! - `faults`: what is done to the servers, in one table; `plan` draws from the seed what happens when.
//! - `round`, `recovery`: what is run and measured; `report` prints it.
//!
//! The seed decides what is tried and when. How the requests and faults interleave is up to the machine, so a repeated
//! round is the same trial, but may go differently.

use std::{cell::RefCell, ops::RangeInclusive, time::Duration};

use anyhow::{Result, bail};
use futures_util::future::try_join_all;
use tokio::time::{Instant, sleep_until, timeout};

mod changes;
pub(crate) mod faults;
pub(crate) mod instance;
mod operator;
mod options;
mod plan;
mod recovery;
pub mod redis_data;
mod redis_servers;
mod report;
mod round;
mod sale;
pub(crate) mod test_cluster;
mod verdict;

use crate::report::{Checked, print};
pub use options::{ChaosOptions, Layout, RedisLayout};
use report::report;
use round::Round;
use test_cluster::TestCluster;

/// Instances of the service.
const INSTANCES: usize = 2;

/// What an instance is told besides addresses: limits short enough that a fault of a second goes beyond
/// them, and a lease short enough to run out within a round.
const SETTINGS: [(&str, &str); 7] = [
    ("DATABASE_TIMEOUT_MS", "1000"),
    ("REDIS_TIMEOUT_MS", "400"),
    ("REQUEST_TIMEOUT_MS", "12000"),
    ("LOCK_LEASE_MS", "1500"),
    ("DRAIN_GRACE_MS", "100"),
    ("UNLIMITED_CLIENTS", "127.0.0.0/8"),
    ("RUST_LOG", "info"),
];

/// For how long after a definite no the order must still have no row.
const AFTER_A_NO: Duration = Duration::from_secs(10);

/// Many times as long as most rounds take. A round in which a server's clock is set ten minutes on may take longer than ten
/// minutes: an order whose id has that clock's time, and which has no row, is not known to be missing before that time.
const ROUND_LIMIT: Duration = Duration::from_secs(15 * 60);

/// All tables in one file, whose size can be limited as a full disk limits it. The limit is that of every file of the server,
/// so the log must be smaller.
const DATABASE_ARGUMENTS: [&str; 3] = [
    "--innodb-file-per-table=0",
    "--innodb-log-file-size=8M",
    "--innodb-autoextend-increment=1",
];

/// Runs all rounds, and prints each as it ends.
///
/// # Errors
/// Those of the set-up, also a server that does not come back after a fault.
pub async fn run(options: &ChaosOptions) -> Result<Checked> {
    let starting = (0..options.at_once).map(async |_| {
        let program = &options.program;
        let layout = options.layout;
        let arguments = &DATABASE_ARGUMENTS;
        let cluster = TestCluster::start(program, layout, arguments, INSTANCES, &SETTINGS).await?;
        cluster.run(true, 0).await?;
        anyhow::Ok(cluster)
    });
    let clusters = try_join_all(starting).await?;
    let mut run = run_on(&clusters, options).await;
    for cluster in &clusters {
        run = cluster.keep_logs(run);
    }
    run
}

async fn run_on(clusters: &[TestCluster], options: &ChaosOptions) -> Result<Checked> {
    print(&format!("chaos: seed {}", options.seed));
    let layout = options.layout;
    let only = options.only_round;
    let numbers = RefCell::new(only.map_or(1..=options.rounds, |only| only..=only));
    let running = clusters
        .iter()
        .map(|cluster| run_rounds(cluster, options, &numbers));
    let mut rounds = Vec::new();
    let mut quiet_until = Instant::now();
    for (rounds_of_one, quiet_until_of_one) in try_join_all(running).await? {
        rounds.extend(rounds_of_one);
        quiet_until = quiet_until.max(quiet_until_of_one);
    }
    rounds.sort_by_key(|round| round.number);
    let mut recoveries = Vec::new();
    if options.recoveries > 0 && only.is_none() {
        let cluster = &clusters[0];
        cluster.run(false, 0).await?;
        for strategy in plan::STRATEGIES {
            for fault in faults::recoveries(layout) {
                recoveries.push(recovery::row(cluster, strategy, fault, options.recoveries).await?);
            }
        }
    }
    // Once more at the very end: what was refused must not have happened later.
    sleep_until(quiet_until).await;
    for round in &mut rounds {
        let was_clean = round.is_clean();
        for sale in &mut round.sales {
            sale.check_again().await?;
        }
        if was_clean && !round.is_clean() {
            print(&format!("at the end: {round}"));
        }
    }
    Ok(report(options.seed, layout, &rounds, recoveries))
}

/// Runs rounds on one set of servers, each time the next of `numbers`, until there is none. Returns the rounds, and until
/// when an order that was refused must still have no row.
async fn run_rounds<'a>(
    cluster: &'a TestCluster,
    options: &ChaosOptions,
    numbers: &RefCell<RangeInclusive<u32>>,
) -> Result<(Vec<Round<'a>>, Instant)> {
    let mut rounds = Vec::new();
    let mut quiet_until = Instant::now();
    loop {
        let Some(number) = numbers.borrow_mut().next() else {
            return Ok((rounds, quiet_until));
        };
        let running = round::run(cluster, options, number, quiet_until);
        let round = timeout(ROUND_LIMIT, running).await.unwrap_or_else(|_| {
            bail!("it did not end within {ROUND_LIMIT:?}: does a server stand still?")
        });
        let round = round.inspect_err(|_| eprintln!("round {number} failed"))?;
        print(&round.to_string());
        if round.sales.iter().any(|sale| !sale.outcome.noes.is_empty()) {
            quiet_until = Instant::now() + AFTER_A_NO;
        }
        rounds.push(round);
    }
}
