//! When a held lock can no longer be believed, its guard says so, and why.

use std::time::{Duration, Instant};

use redis::AsyncCommands;
use redisson_lock::{Error, LockConfig, Locks, LostReason};

use super::{LEASE, ask, locks, nothing_left, soon};
use crate::support::redis_server::RedisServer;

const NAME: &str = "lock:order:1";

#[tokio::test]
async fn a_flushed_lock_is_expired() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = locks(&server).await;
    let me = locks.owner();
    let lock = locks.reentrant(NAME).unwrap();
    let outer = lock.acquire(&me).await.unwrap();
    let inner = lock.acquire(&me).await.unwrap();
    let _: () = ask(&mut raw, "FLUSHALL", &[]).await;
    assert_eq!(soon("the loss is noticed", outer.lost()).await, LostReason::Expired);
    assert_eq!(soon("the loss is noticed", inner.lost()).await, LostReason::Expired);
    assert_eq!(outer.valid_for(), Duration::ZERO);

    // The same owner may take it anew; the guards of the lost hold cannot touch that.
    let again = lock.acquire(&me).await.unwrap();
    assert_eq!(outer.release().await, Err(Error::Lost(LostReason::Expired)));
    drop(inner);
    assert_eq!(lock.hold_count(&me).await.unwrap(), 1);
    again.release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn a_lock_in_other_hands_is_taken() {
    let server = RedisServer::start().await;
    let locks = locks(&server).await;
    let lock = locks.reentrant(NAME).unwrap();
    let mine = lock.acquire(&locks.owner()).await.unwrap();
    let lost = mine.lost();
    assert!(lock.force_unlock().await.unwrap());
    let theirs = lock.try_acquire(&locks.owner()).await.unwrap().unwrap();
    assert_eq!(soon("the loss is noticed", lost).await, LostReason::Taken);
    assert_eq!(mine.release().await, Err(Error::Lost(LostReason::Taken)));
    theirs.release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn re_entry_notices_a_lost_lock() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    // A lease so long that no renewal can be what notices.
    let locks = Locks::connect(server.client(), LockConfig::default()).await.unwrap();
    let (me, other) = (locks.owner(), locks.owner());
    let lock = locks.reentrant(NAME).unwrap();

    let first = lock.acquire(&me).await.unwrap();
    let _: () = raw.del(NAME).await.unwrap();
    let second = lock.try_acquire(&me).await.unwrap().expect("the lock is free");
    assert_eq!(soon("the loss is noticed", first.lost()).await, LostReason::Expired);
    assert_eq!(lock.hold_count(&me).await.unwrap(), 1, "a new hold, not a continued one");
    drop(first);

    let _: () = raw.del(NAME).await.unwrap();
    let theirs = lock.try_acquire(&other).await.unwrap().unwrap();
    assert!(lock.try_acquire(&me).await.unwrap().is_none());
    assert_eq!(soon("the loss is noticed", second.lost()).await, LostReason::Taken);
    drop(second);
    theirs.release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn a_paused_redis_makes_it_unreachable_at_the_deadline() {
    let server = RedisServer::start().await;
    let locks = locks(&server).await;
    let guard = locks.reentrant(NAME).unwrap().acquire(&locks.owner()).await.unwrap();
    server.pause();
    let paused = Instant::now();
    assert_eq!(soon("the loss is noticed", guard.lost()).await, LostReason::Unreachable);
    let took = paused.elapsed();
    assert!(took <= LEASE + Duration::from_millis(900), "{took:?}");
    assert_eq!(guard.valid_for(), Duration::ZERO);
    server.resume();
    // Renewals that were on their way may fill the lease again; the clean-up takes it back.
    nothing_left_but(&server, &locks).await;
    assert_eq!(guard.release().await, Err(Error::Lost(LostReason::Unreachable)));
    nothing_left(&server, &[&locks]).await;
}

/// No key on the server, although a (lost) guard still keeps its entry.
async fn nothing_left_but(server: &RedisServer, locks: &Locks) {
    let mut conn = server.conn().await;
    let gone = async || !conn.exists::<_, bool>(NAME).await.expect("EXISTS");
    super::eventually("the key is gone", gone).await;
    assert_eq!(locks.usage().watched, 0);
}

#[tokio::test]
async fn a_lock_that_was_given_back_is_never_lost() {
    let server = RedisServer::start().await;
    let locks = locks(&server).await;
    let lock = locks.reentrant(NAME).unwrap();
    let guard = lock.acquire(&locks.owner()).await.unwrap();
    let lost = guard.lost();
    guard.release().await.unwrap();
    let other = lock.acquire(&locks.owner()).await.unwrap();
    assert!(tokio::time::timeout(LEASE * 2, lost).await.is_err());
    other.release().await.unwrap();
}

#[tokio::test]
async fn a_short_outage_loses_nothing() {
    let mut server = RedisServer::start_with(true).await;
    let config = LockConfig::default().with_lease(Duration::from_secs(6));
    let locks = Locks::connect(server.client(), config).await.unwrap();
    let me = locks.owner();
    let lock = locks.reentrant(NAME).unwrap();
    let guard = lock.acquire(&me).await.unwrap();
    server.restart().await;
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert!(guard.valid_for() > Duration::ZERO);
    assert_eq!(lock.hold_count(&me).await.unwrap(), 1);
    guard.release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}
