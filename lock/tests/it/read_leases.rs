//! Leases of several read holds of one owner: each hold keeps its own until it is released.

use std::time::Duration;

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;

use super::{default_locks, nothing_left, soon};
use crate::support::redis_server::RedisServer;

const NAME: &str = "catalogue";
const SHORT: Duration = Duration::from_millis(1_500);
const LONG: Duration = Duration::from_secs(60);

/// The expiry of the lock and of the first hold, in ms.
async fn expiries(raw: &mut MultiplexedConnection, owner: &redisson_lock::Owner) -> (i64, i64) {
    let hold = format!("{{{NAME}}}:{owner}:rwlock_timeout:1");
    (raw.pttl(NAME).await.unwrap(), raw.pttl(hold).await.unwrap())
}

#[tokio::test]
async fn releasing_one_read_hold_does_not_lengthen_the_others() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = default_locks(&server).await;
    let (read, owner) = (locks.read_write(NAME).unwrap().read().clone(), locks.owner());
    for inner_lease in [SHORT, LONG] {
        let outer = read.clone().with_lease(SHORT).acquire(&owner).await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        let inner = read.clone().with_lease(inner_lease).acquire(&owner).await.unwrap();
        inner.release().await.unwrap();
        let (key, hold) = expiries(&mut raw, &owner).await;
        assert!((1..=1_000).contains(&hold), "{hold} ms for the hold that is left");
        assert!((1..=1_000).contains(&key), "{key} ms for the lock");
        assert!(outer.valid_for() <= Duration::from_secs(1), "{:?}", outer.valid_for());
        assert!(outer.valid_for() > Duration::ZERO);
        outer.release().await.unwrap();
    }
    // A writer is let in as soon as the hold that is left has ended.
    let outer = read.clone().with_lease(SHORT).acquire(&owner).await.unwrap();
    let inner = read.clone().with_lease(LONG).acquire(&owner).await.unwrap();
    inner.release().await.unwrap();
    soon("the hold that is left ends", outer.lost()).await;
    let lock = locks.read_write(NAME).unwrap();
    let writing = soon("a writer gets in", lock.write().acquire(&locks.owner())).await.unwrap();
    writing.release().await.unwrap();
    drop(outer);
    nothing_left(&server, &[&locks]).await;
}

/// The guard that is released first is not the one of the last hold.
#[tokio::test]
async fn releasing_the_outer_read_hold_leaves_the_inner_its_lease() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = default_locks(&server).await;
    let (read, owner) = (locks.read_write(NAME).unwrap().read().clone(), locks.owner());
    let other = read.clone().with_lease(SHORT).acquire(&locks.owner()).await.unwrap();
    let outer = read.clone().with_lease(SHORT).acquire(&owner).await.unwrap();
    let inner = read.clone().with_lease(LONG).acquire(&owner).await.unwrap();
    outer.release().await.unwrap();
    let (key, hold) = expiries(&mut raw, &owner).await;
    assert!(hold > 50_000 && key > 50_000, "{hold} ms for the hold that is left, {key} ms");
    assert!(inner.valid_for() > Duration::from_secs(50), "{:?}", inner.valid_for());
    inner.release().await.unwrap();
    other.release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}

/// The watchdog renews what is left.
#[tokio::test]
async fn a_renewed_read_hold_is_renewed_after_a_release() {
    let server = RedisServer::start().await;
    let locks = super::locks(&server).await;
    let (read, owner) = (locks.read_write(NAME).unwrap().read().clone(), locks.owner());
    let outer = read.acquire(&owner).await.unwrap();
    read.acquire(&owner).await.unwrap().release().await.unwrap();
    tokio::time::sleep(super::LEASE * 2).await;
    assert!(outer.valid_for() > Duration::ZERO);
    assert_eq!(read.hold_count(&owner).await.unwrap(), 1);
    outer.release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}
