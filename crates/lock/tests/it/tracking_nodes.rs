//! Client tracking where connections break, nodes are replaced, or the server refuses it.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, RedisConnectionInfo};
use redisson_lock::{Guard, LockConfig, Locks, LostReason, Server};

use super::loss_at_once::{held_and_tracked, tracked};
use super::users::set_user;
use super::{connected, eventually, nothing_left, renewed, soon, start_with};
use testkit::proxy::{Mode, Proxy};
use testkit::raw::info;
use testkit::redis_cluster::RedisCluster;
use testkit::redis_sentinel::{MASTER, RedisSentinel};
use testkit::redis_server::RedisServer;

/// A lease so long that the next renewal is 40 s away.
async fn long_leases(server: impl Into<Server>) -> Locks {
    let config = LockConfig::default().with_lease(Duration::from_secs(120));
    let config = config.with_command_timeout(Duration::from_secs(3));
    connected(server, config).await.unwrap()
}

async fn reported(guard: &Guard) -> LostReason {
    soon("the loss is reported", guard.lost()).await
}

#[tokio::test]
async fn a_loss_while_the_connection_is_broken_is_reported_when_it_is_back() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let locks = long_leases(proxy.redis()).await;
    for fault in [Mode::Cut, Mode::HalfOpen] {
        let name = format!("{fault:?}");
        let guard = held_and_tracked(&server, &locks, &name).await;
        proxy.set(fault);
        let _: () = raw.del(&name).await.unwrap();
        proxy.set(Mode::Forward);
        assert_eq!(reported(&guard).await, LostReason::Expired, "{fault:?}");
    }
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn data_lost_in_a_restart_are_reported() {
    let mut server = RedisServer::start().await;
    let locks = long_leases(server.client()).await;
    let guard = held_and_tracked(&server, &locks, "lock").await;
    server.restart().await;
    assert_eq!(reported(&guard).await, LostReason::Expired);
}

#[tokio::test]
async fn where_tracking_is_refused_renewals_find_the_loss() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let config = LockConfig::default().with_lease(Duration::from_secs(3));
    for (user, without) in [("one", "-client|tracking"), ("two", "-hmget")] {
        set_user(&server, user, &["~*", "&*", "+@all", without]).await;
        let url = format!("redis://{user}:secret@{}/", server.address());
        let client = redis::Client::open(url).unwrap();
        let locks = connected(client, config.clone()).await.unwrap();
        let guard = locks.lock("lock").acquire().await.unwrap();
        eventually("it is refused", async || locks.refusals().tracking > 0).await;
        let _: () = raw.del("lock").await.unwrap();
        assert_eq!(
            soon("the loss is reported", guard.lost()).await,
            LostReason::Expired
        );
        if user == "two" {
            // Each key that it must not read is refused.
            continue;
        }
        // Tried again after a minute, not for each hold, which is given to the tracker when it has lasted for a second.
        for name in ["a", "b"] {
            let again = locks.lock(name).acquire().await.unwrap();
            renewed(|| again.valid_for()).await;
            again.release().await.unwrap();
        }
        assert_eq!(locks.refusals().tracking, 1);
    }
}

#[tokio::test]
async fn it_can_be_turned_off() {
    let (server, mut raw, [locks]) =
        start_with(LockConfig::default().with_client_tracking(false)).await;
    let guard = locks.lock("lock").acquire().await.unwrap();
    // A hold that began later, of locks with tracking, is tracked; it is the only one.
    let others = long_leases(server.client()).await;
    let other = held_and_tracked(&server, &others, "other").await;
    assert_eq!(info(&mut raw, "clients", "tracking_clients").await, 1);
    assert_eq!(info(&mut raw, "stats", "tracking_total_keys").await, 1);
    other.release().await.unwrap();
    guard.release().await.unwrap();
}

/// A connection without holds is closed after ten seconds.
#[tokio::test]
async fn a_process_without_long_holds_keeps_no_connection() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = long_leases(server.client()).await;
    held_and_tracked(&server, &locks, "lock")
        .await
        .release()
        .await
        .unwrap();
    assert_eq!(info(&mut raw, "clients", "tracking_clients").await, 1);
    eventually("the connection is closed", async || {
        info(&mut raw, "clients", "tracking_clients").await == 0
    })
    .await;
    // Another is made for the next hold.
    held_and_tracked(&server, &locks, "lock")
        .await
        .release()
        .await
        .unwrap();
    nothing_left(&server, &[&locks]).await;
}

async fn tracked_on(cluster: &RedisCluster, node: usize, keys: u64) -> MultiplexedConnection {
    let mut raw = cluster.nodes[node].conn().await;
    tracked(&mut raw, keys).await;
    raw
}

#[tokio::test]
async fn every_master_of_a_cluster_reports_and_moved_slots_are_followed() {
    let cluster = RedisCluster::start().await;
    let locks = long_leases(Server::cluster(cluster.urls()).unwrap()).await;
    let mut guards = Vec::new();
    for node in 0..3 {
        let (name, slot) = cluster.name_on(node).await;
        let guard = locks.lock(&name).acquire().await.unwrap();
        tracked_on(&cluster, node, 1).await;
        guards.push((guard, name, slot));
    }
    // The first moves to the node of the second, and is held all the time.
    let (moved, name, slot) = &guards[0];
    cluster.begin_move(*slot, 0, 1).await;
    cluster.end_move(*slot, 0, 1).await;
    let mut raw = tracked_on(&cluster, 1, 2).await;
    assert!(
        !moved.valid_for().is_zero(),
        "the move was taken for a loss"
    );
    let _: () = raw.del(name).await.unwrap();
    assert_eq!(reported(moved).await, LostReason::Expired);
    for (node, (guard, name, _)) in guards.iter().enumerate().skip(1) {
        let mut raw = cluster.nodes[node].conn().await;
        let _: () = raw.del(name).await.unwrap();
        assert_eq!(reported(guard).await, LostReason::Expired);
    }
}

#[tokio::test]
async fn a_new_master_of_sentinel_is_followed() {
    let sentinel = RedisSentinel::start().await;
    let login = RedisConnectionInfo::default();
    let locks = long_leases(Server::sentinel(sentinel.urls(), MASTER, login).unwrap()).await;
    let guard = locks.lock("lock").acquire().await.unwrap();
    tracked(&mut sentinel.servers[0].conn().await, 1).await;
    let mut new_master = sentinel.servers[1].conn().await;
    eventually("the replica has the lock", async || {
        new_master.exists::<_, bool>("lock").await.unwrap()
    })
    .await;
    sentinel.ask_for_failover().await;
    // The sentinels close every connection when they promote a replica, also one that is just made.
    let new_master = sentinel.servers[1].client();
    let followed = async || {
        let Ok(mut raw) = new_master.get_multiplexed_async_connection().await else {
            return false;
        };
        let stats: redis::RedisResult<String> =
            redis::cmd("INFO").arg("stats").query_async(&mut raw).await;
        stats.is_ok_and(|stats| stats.contains("tracking_total_keys:1\r"))
    };
    testkit::wait::eventually("it is followed", Duration::from_secs(60), followed).await;
    assert!(
        !guard.valid_for().is_zero(),
        "the failover was taken for a loss"
    );
    eventually("the key is deleted", async || {
        let Ok(mut raw) = new_master.get_multiplexed_async_connection().await else {
            return false;
        };
        raw.del::<_, ()>("lock").await.is_ok()
    })
    .await;
    assert_eq!(reported(&guard).await, LostReason::Expired);
}
