//! Chaos runs with a fixed seed: whole sales on every strategy that is safe under faults, through outages and failovers.
//! `./dev chaos` runs any number of rounds from any seed.

use std::{path::PathBuf, process::ExitCode};

use seckill_loadtest::chaos::{self, ChaosOptions, RedisLayout};
use seckill_loadtest::options::defaults;
use testkit::replicated_database::Replication;

use crate::database_failover::is_mariadb;

/// Runs this number of rounds. Each has the next fault of those that `./dev chaos --list` shows, in a fixed order (`draw_order`
/// of the chaos runs), and perhaps others, drawn at random.
async fn rounds(rounds: u32, redis: RedisLayout, database: Replication) {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_seckill"));
    let mut options = ChaosOptions {
        program,
        seed: 4,
        rounds,
        at_once: 3,
        buyers: 300,
        recoveries: 0,
        ..defaults()
    };
    options.layout.redis = redis;
    options.layout.database = database;
    let report = chaos::run(&options).await.expect("servers that start");
    assert_eq!(report.result().exit_code(), ExitCode::SUCCESS, "{report}");
    // The first figure has a row for each fault: how often it was injected, and its name.
    let injected_faults = report.figures[0]
        .rows
        .iter()
        .filter(|row| row[0] != "0")
        .count();
    assert!(
        injected_faults >= rounds as usize,
        "each has a fault: {report}"
    );
}

/// Enough rounds for a payment whose reply is lost, late copies of what was sent to either server, and clocks that are wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_oversold_lost_or_stranded_under_faults() {
    rounds(30, RedisLayout::Single, Replication::None).await;
}

/// A Redis master dies, the database's primary dies, a slot moves, and the primary changes places with its replica.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_oversold_when_a_redis_cluster_and_a_replicated_database_fail_over() {
    if is_mariadb() {
        rounds(10, RedisLayout::Cluster, Replication::SemiSynchronous).await;
    }
}

/// Enough rounds for a master that is partitioned together with its clients.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_oversold_when_sentinel_replaces_a_redis_master() {
    rounds(7, RedisLayout::Sentinel, Replication::None).await;
}
