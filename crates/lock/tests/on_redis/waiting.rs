//! Waiting for a lock: wake-ups by Pub/Sub messages, and time limits.

use std::time::{Duration, Instant};

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use redisson_lock::Locks;
use tokio::task::JoinHandle;

use super::{
    LONG_LEASE, TIMEOUT, calls_of, eventually, locks, nothing_left, query, soon, start,
    subscribers, wait_for,
};
use testkit::redis_server::RedisServer;

const NAME: &str = "lock:order:1";
const CHANNEL: &str = "redisson_lock__channel:{lock:order:1}";

/// A server, and locks whose scripts are loaded, so that every attempt is one script call.
async fn warm() -> (RedisServer, MultiplexedConnection, Locks) {
    let (server, raw, [locks]) = start(LONG_LEASE).await;
    let warm_up_lock = locks.lock("another lock");
    warm_up_lock
        .acquire()
        .await
        .expect("acquire")
        .release()
        .await
        .expect("release");
    (server, raw, locks)
}

/// Starts `count` tasks that acquire the lock and release it. Returns when each has made its two
/// attempts, before and after subscribing, so that only a message wakes it.
async fn waiters(
    raw: &mut MultiplexedConnection,
    locks: &Locks,
    count: i64,
) -> Vec<JoinHandle<()>> {
    let asleep = calls_of(raw, "evalsha").await + 2 * count;
    let waiters = (0..count)
        .map(|_| {
            let lock = locks.lock(NAME);
            tokio::spawn(async move {
                let guard = lock.acquire().await.expect("acquire");
                guard.release().await.expect("release");
            })
        })
        .collect();
    eventually("all waiters sleep", async || {
        calls_of(raw, "evalsha").await == asleep
    })
    .await;
    waiters
}

/// Waits until all are done.
async fn all_acquire(waiters: Vec<JoinHandle<()>>) {
    for waiter in waiters {
        soon("every waiter acquires the lock", waiter)
            .await
            .expect("a waiter failed");
    }
}

#[tokio::test]
async fn a_waiter_wakes_when_a_lease_ends_without_a_message() {
    let (_server, mut raw, locks) = warm().await;
    let _: () = raw.hset(NAME, "a client that crashed", 1).await.unwrap();
    let _: bool = raw.pexpire(NAME, 600).await.unwrap();
    let owner = locks.owner();
    let lock = locks.lock(NAME);
    let guard = soon("the lease ends", lock.acquire_as(&owner))
        .await
        .unwrap();
    guard.release().await.unwrap();
}

/// As by FLUSHALL, or by a client that deletes the key without a message: a waiter tries again after a third
/// of its own lease, however long the holder's lease is.
#[tokio::test]
async fn a_waiter_looks_again_when_a_key_vanishes_without_a_message() {
    let (server, mut raw, [holder_locks]) = start(LONG_LEASE).await;
    let held = holder_locks.lock(NAME).acquire().await.unwrap();
    let waiter_locks = locks(&server, TIMEOUT * 3 / 2).await;
    let waiting = wait_for(&waiter_locks.lock(NAME));
    eventually("it is subscribed", async || {
        subscribers(&mut raw, CHANNEL).await == 1
    })
    .await;
    let _: () = raw.del(NAME).await.unwrap();
    let guard = soon("it looks again", waiting).await.unwrap();
    guard.release().await.unwrap();
    drop(held);
}

#[tokio::test]
async fn many_waiters_share_one_subscription_and_one_message_wakes_one() {
    let (server, mut raw, locks) = warm().await;
    let guard = locks.lock(NAME).acquire().await.unwrap();
    let waiting = waiters(&mut raw, &locks, 20).await;
    assert_eq!(
        (subscribers(&mut raw, CHANNEL).await, locks.usage().channels),
        (1, 1)
    );
    // Messages without a release: each causes one attempt of one waiter, which then sleeps again.
    let before = calls_of(&mut raw, "evalsha").await;
    for messages in 1..=3 {
        let _: i64 = raw.publish(CHANNEL, "0").await.unwrap();
        let expected = before + messages;
        eventually("one waiter has tried", async || {
            calls_of(&mut raw, "evalsha").await >= expected
        })
        .await;
        // Time for a second attempt, which must not happen.
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(calls_of(&mut raw, "evalsha").await, expected);
    }
    guard.release().await.unwrap();
    all_acquire(waiting).await;
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn acquire_within_ends_at_its_limit() {
    let (server, _, locks) = warm().await;
    let lock = locks.lock(NAME);
    let guard = lock.acquire().await.unwrap();
    for limit in [Duration::ZERO, Duration::from_millis(200)] {
        let started = Instant::now();
        let multi = locks.multi(["free", NAME]);
        let (guard_of_lock, guard_of_multi) = soon("the limit of both", async {
            tokio::join!(lock.acquire_within(limit), multi.acquire_within(limit))
        })
        .await;
        assert!(guard_of_lock.unwrap().is_none() && guard_of_multi.unwrap().is_none());
        assert!(started.elapsed() >= limit, "{:?}", started.elapsed());
    }
    guard.release().await.unwrap();
    let got = lock.acquire_within(Duration::MAX).await.unwrap();
    got.expect("it is free").release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn waiters_survive_a_reconnect() {
    let (server, mut raw, locks) = warm().await;
    let lock = locks.lock(NAME);
    let lost = lock.acquire().await.unwrap();
    let waiting = waiters(&mut raw, &locks, 3).await;
    // The lock becomes free without a message, and the subscription is cut: after a reconnect the
    // client has to assume that it missed one.
    let _: () = raw.del(NAME).await.unwrap();
    let cut: i64 = query(&mut raw, "CLIENT", &["KILL", "TYPE", "pubsub"]).await;
    assert_eq!(cut, 1);
    all_acquire(waiting).await;
    drop(lost);

    // The new subscription receives messages.
    let guard = lock.acquire().await.unwrap();
    let waiting = waiters(&mut raw, &locks, 3).await;
    guard.release().await.unwrap();
    all_acquire(waiting).await;
    nothing_left(&server, &[&locks]).await;
}
