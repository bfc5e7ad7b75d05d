//! A node of a cluster that hangs delays no renewals on the others, however many holds it has.

use std::time::{Duration, Instant};

use redisson_lock::{Guard, LockConfig, LostReason, Server};

use crate::hung_shard::acquire;
use crate::{connected, soon, stats_of};
use testkit::redis_cluster::RedisCluster;

const HOLDS: usize = 10_000;

/// A renewal waits for the node that hangs for a third of this.
const LEASE: Duration = Duration::from_secs(24);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_shard_delays_none_of_10_000_renewals_on_the_others() {
    let cluster = RedisCluster::start().await;
    let config = LockConfig::default()
        .with_lease(LEASE)
        .with_command_timeout(LEASE / 3);
    let locks = connected(Server::cluster(cluster.urls()).unwrap(), config)
        .await
        .unwrap();
    let mut hanging = Vec::new();
    let mut healthy = Vec::new();
    for master in 0..3 {
        let (tag, _) = cluster.name_on(master).await;
        let guards = acquire(&locks, &tag, HOLDS / 3).await;
        if master == 0 {
            hanging = guards
        } else {
            healthy.extend(guards)
        }
    }
    cluster.nodes[0].pause();
    let paused = Instant::now();
    let before = stats_of(&locks, "reentrant").renewed;
    let mut least = LEASE;
    while !hanging.iter().all(|guard| guard.valid_for().is_zero()) {
        least = least.min(healthy.iter().map(Guard::valid_for).min().unwrap());
        // Due when two thirds of the lease are left; a third was spent waiting, at the most.
        assert!(
            least >= LEASE / 3,
            "{least:?} left {:?} after the pause",
            paused.elapsed()
        );
        assert!(paused.elapsed() < LEASE * 2, "not lost");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let renewed = stats_of(&locks, "reentrant").renewed - before;
    println!(
        "{} holds renewed {renewed} times; least left {least:?}",
        healthy.len()
    );
    assert!(
        renewed > u64::try_from(healthy.len()).unwrap(),
        "{renewed} renewals"
    );
    for guard in hanging {
        assert_eq!(
            soon("the loss is detected", guard.lost()).await,
            LostReason::Unreachable
        );
    }
    for guard in &healthy {
        assert!(guard.valid_for() > LEASE / 3);
    }
    cluster.nodes[0].resume();
}
