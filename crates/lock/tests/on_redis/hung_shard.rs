//! A node of a cluster that hangs delays no clean-ups on the others, however many holds it has. For renewals
//! see `slow::hung_shard`.

use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use redisson_lock::{Error, Guard, LockConfig, Locks, Server};

use super::{connected, eventually, query, wait_for};
use testkit::redis_cluster::RedisCluster;

/// Acquires `count` locks with this hash tag.
pub async fn acquire(locks: &Locks, tag: &str, count: usize) -> Vec<Guard> {
    let owner = locks.owner();
    let guards = stream::iter(0..count).map(async |number| {
        let lock = locks.lock(&format!("lock:{{{tag}}}:{number}"));
        lock.acquire_as(&owner).await.unwrap()
    });
    guards.buffer_unordered(200).collect().await
}

/// A waiter of a fair lock whose future is dropped leaves the queue by a clean-up. What a node that did not
/// answer may have granted is released by one, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_shard_delays_no_clean_up_on_the_others() {
    const TRIES: usize = 2000;
    let cluster = RedisCluster::start().await;
    let config = LockConfig::default().with_command_timeout(Duration::from_secs(2));
    let locks = connected(Server::cluster(cluster.urls()).unwrap(), config)
        .await
        .unwrap();
    let (hanging, _) = cluster.name_on(0).await;
    let (healthy, _) = cluster.name_on(1).await;
    let name = format!("lock:{{{healthy}}}");
    let fair = locks.fair(&name);
    let held = fair.acquire().await.unwrap();
    let waiter = wait_for(&fair);
    let mut raw = cluster.nodes[1].conn().await;
    let queue = format!("redisson_lock_queue:{name}");
    eventually("it waits", async || {
        query::<i64>(&mut raw, "LLEN", &[&queue]).await == 1
    })
    .await;

    // Connects to the node, and loads the script.
    acquire(&locks, &hanging, 1).await;
    cluster.nodes[0].pause();
    let tries = (0..TRIES).map(async |number| {
        let lock = locks.lock(&format!("lock:{{{hanging}}}:{number}:again"));
        lock.try_acquire().await.map(drop)
    });
    for answer in join_all(tries).await {
        fails_as!(answer, Unavailable);
    }
    waiter.abort();
    eventually("it leaves the queue", async || {
        query::<i64>(&mut raw, "LLEN", &[&queue]).await == 0
    })
    .await;
    let pending = locks.usage().entries;
    assert!(
        pending > TRIES / 2,
        "{pending} clean-ups under way on the node that hangs"
    );
    held.release().await.unwrap();
    cluster.nodes[0].resume();
}
