//! Histories of a lock on a Redis Cluster: moving slots, nodes that hang, lost and late requests, and
//! failovers.

use std::time::Duration;

use rand::Rng;

use super::replication::{granted_after, short_holds, start, still_held};
use crate::cluster::behind_proxies;
use crate::history::event::now;
use crate::history::lock_under_test::{Kind, NAME};
use crate::history::workers::Workers;
use crate::history::{RUN, check, disturb, few_owners, recovered, repeat_fault};
use crate::{addresses, eventually, query};
use testkit::redis_cluster::RedisCluster;
use testkit::redis_sentinel::in_sync;

/// How long a master is gone before its replica takes over.
const NODE_TIMEOUT: Duration = Duration::from_secs(1);

fn url(cluster: &RedisCluster) -> String {
    format!("redis-cluster://{}", addresses(&cluster.nodes))
}

/// The node, by number, that serves the lock, as node `observer` knows.
async fn serving(cluster: &RedisCluster, observer: usize) -> usize {
    let slot = cluster.slot(NAME).await;
    cluster
        .owner(observer, slot)
        .await
        .expect("a master serves the slot")
}

/// The lock's slot moves from node to node, with the lock; owners are never replaced.
#[tokio::test]
async fn the_slot_moves() {
    let cluster = RedisCluster::start().await;
    let slot = cluster.slot(NAME).await;
    let mut source = serving(&cluster, 0).await;
    let workers = start(&url(&cluster), |plan| plan.new_owner = 0.0).await;
    repeat_fault(0..60, async || {
        let target = (source + 1) % 3;
        let pause = rand::rng().random_range(0..30);
        cluster.begin_move(slot, source, target).await;
        tokio::time::sleep(Duration::from_millis(pause)).await;
        cluster.end_move(slot, source, target).await;
        source = target;
    })
    .await;
    check(workers, &cluster.nodes).await;
}

#[tokio::test]
async fn nodes_pause_and_close_connections() {
    let cluster = RedisCluster::start().await;
    let serving = serving(&cluster, 0).await;
    let workers = start(&url(&cluster), |_| {}).await;
    repeat_fault(0..100, async || {
        let fault = rand::rng().random_range(0..4);
        let pause = Duration::from_millis(rand::rng().random_range(1..700));
        let number = if rand::rng().random_bool(0.7) {
            serving
        } else {
            rand::rng().random_range(0..3)
        };
        let node = &cluster.nodes[number];
        if fault == 0 {
            node.pause();
            tokio::time::sleep(pause).await;
            return node.resume();
        }
        let mut raw = node.conn().await;
        let kill = |client_type| ["KILL", "TYPE", client_type, "SKIPME", "yes"];
        match fault {
            1 => drop(query::<i64>(&mut raw, "CLIENT", &kill("normal")).await),
            2 => drop(query::<i64>(&mut raw, "CLIENT", &kill("pubsub")).await),
            _ => drop(query::<String>(&mut raw, "SCRIPT", &["FLUSH"]).await),
        }
    })
    .await;
    check(workers, &cluster.nodes).await;
}

#[tokio::test]
async fn replies_are_lost_and_requests_come_late() {
    let cluster = RedisCluster::start().await;
    let serving = serving(&cluster, 0).await;
    let (proxies, url) = behind_proxies(&cluster).await;
    let workers = Workers::start(Kind::Reentrant, &url, few_owners).await;
    let proxy = &proxies[serving];
    let before = proxy.requests();
    disturb(proxy).await;
    assert!(
        proxy.requests() > before + 20,
        "the lock's node was not reached by its proxy"
    );
    check(workers, &cluster.nodes).await;
}

/// A failover may lose the last writes, so holds at that moment only have to end. Before and after
/// it there is one owner at a time.
#[tokio::test]
async fn a_master_is_killed() {
    let mut cluster = RedisCluster::start_with_replicas(NODE_TIMEOUT).await;
    let master = serving(&cluster, 0).await;
    let mut workers = start(&url(&cluster), |_| {}).await;
    tokio::time::sleep(RUN / 4).await;
    workers
        .wipe_and_cut(async {
            cluster.nodes[master].kill();
            replaced(&cluster, (master + 1) % 3, master + 3).await;
        })
        .await;
    recovered(&workers).await;
    tokio::time::sleep(RUN / 4).await;
    workers.finish(&[]).await.assert_holds();
}

async fn replaced(cluster: &RedisCluster, observer: usize, successor: usize) {
    let slot = cluster.slot_on(observer, NAME).await;
    eventually("the replica takes over", async || {
        cluster.owner(observer, slot).await == Some(successor)
    })
    .await;
}

/// Master and replica change places, and change back while the lock is held: no hold is lost.
#[tokio::test]
async fn a_graceful_failover_loses_nothing() {
    // A node votes for the same master's replica only once in two node timeouts.
    let cluster = RedisCluster::start_with_replicas(Duration::from_secs(60)).await;
    let first = serving(&cluster, 0).await;
    let second = first + 3;
    let workers = start(&url(&cluster), short_holds).await;
    let change_places = async |master: usize, replica: usize| {
        // The replica's master and the nodes that vote have to know the replica; a failed election is not
        // repeated soon.
        for observer in 0..cluster.nodes.len() {
            eventually("every node knows the replica", async || {
                cluster.is_replica(observer, replica).await
            })
            .await;
        }
        let mut raw = cluster.nodes[replica].conn().await;
        let _: () = query(&mut raw, "CLUSTER", &["FAILOVER"]).await;
        replaced(&cluster, (first + 1) % 3, replica).await;
        in_sync(&cluster.nodes[replica], &cluster.nodes[master]).await;
    };
    change_places(first, second).await;
    granted_after(&workers, now()).await;
    let holder = workers.keep_holding().await;
    change_places(second, first).await;
    still_held(&workers, holder).await;
    workers.let_go();
    check(workers, &cluster.nodes[..3]).await;
}
