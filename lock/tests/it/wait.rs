//! Waiting: woken by messages, limited in time.

use std::time::{Duration, Instant};

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use redisson_lock::{LockConfig, Locks};
use tokio::task::JoinHandle;

use super::{ask, eventually, nothing_left, soon};
use crate::support::redis_server::RedisServer;

const NAME: &str = "lock:order:1";
const CHANNEL: &str = "redisson_lock__channel:{lock:order:1}";

/// Locks with the full lease of 30 s, so that a wake-up in time can only come from a message. The
/// scripts are loaded, so that every try is one call of a script.
async fn slow(server: &RedisServer) -> Locks {
    let locks = Locks::connect(server.client(), LockConfig::default()).await.expect("connect");
    let other = locks.reentrant("another lock").expect("a name");
    other.acquire(&locks.owner()).await.expect("acquire").release().await.expect("release");
    locks
}

/// How many scripts the server has run.
pub async fn script_calls(raw: &mut MultiplexedConnection) -> i64 {
    let stats: String = ask(raw, "INFO", &["commandstats"]).await;
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:"));
    let calls = line.and_then(|line| line.split_once("calls=")?.1.split(',').next());
    calls.map_or(0, |calls| calls.parse().expect("a number"))
}

/// So many tasks that wait for the lock, take it, and give it back. Returns when all of them have
/// found it held twice, before and after subscribing, and hear of its release.
async fn waiters(
    raw: &mut MultiplexedConnection,
    locks: &Locks,
    count: i64,
) -> Vec<JoinHandle<()>> {
    let asleep = script_calls(raw).await + 2 * count;
    let waiter = |locks: Locks| async move {
        let lock = locks.reentrant(NAME).expect("a name");
        let guard = lock.acquire(&locks.owner()).await.expect("acquire");
        guard.release().await.expect("release");
    };
    let waiters = (0..count).map(|_| tokio::spawn(waiter(locks.clone()))).collect();
    eventually("all waiters sleep", async || script_calls(raw).await == asleep).await;
    waiters
}

/// Wait until all of them are done, which has to happen long before a lease of 30 s ends.
async fn all_in(waiters: Vec<JoinHandle<()>>) {
    for waiter in waiters {
        soon("every waiter gets in", waiter).await.expect("a waiter failed");
    }
}

#[tokio::test]
async fn a_release_wakes_a_waiter_of_another_process() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let (here, there) = (slow(&server).await, slow(&server).await);
    let guard = here.reentrant(NAME).unwrap().acquire(&here.owner()).await.unwrap();
    let waiting = waiters(&mut raw, &there, 1).await;
    let released = Instant::now();
    guard.release().await.unwrap();
    all_in(waiting).await;
    // The lease had some 30 s left; a busy machine may take its time, but not that long.
    assert!(released.elapsed() < Duration::from_secs(5), "{:?}", released.elapsed());
    nothing_left(&server, &[&here, &there]).await;
}

#[tokio::test]
async fn a_foreign_clients_release_wakes_a_waiter() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = slow(&server).await;
    // What a Redisson client does, command by command.
    let foreign = "8743c9c0-0795-4907-87fd-6c719a6b4586:52";
    let _: () = raw.hset(NAME, foreign, 1).await.unwrap();
    let _: bool = raw.pexpire(NAME, 30_000).await.unwrap();
    let waiting = waiters(&mut raw, &locks, 1).await;
    let released = Instant::now();
    let _: () = raw.del(NAME).await.unwrap();
    let heard: i64 = raw.publish(CHANNEL, "0").await.unwrap();
    assert_eq!(heard, 1);
    all_in(waiting).await;
    assert!(released.elapsed() < Duration::from_secs(5), "{:?}", released.elapsed());
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn a_waiter_wakes_when_a_lease_ends_without_a_message() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = slow(&server).await;
    let _: () = raw.hset(NAME, "a client that crashed", 1).await.unwrap();
    let _: bool = raw.pexpire(NAME, 600).await.unwrap();
    let me = locks.owner();
    let lock = locks.reentrant(NAME).unwrap();
    let guard = soon("the lease ends", lock.acquire(&me)).await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn many_waiters_share_one_subscription_and_each_gets_in() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = slow(&server).await;
    let guard = locks.reentrant(NAME).unwrap().acquire(&locks.owner()).await.unwrap();
    let waiting = waiters(&mut raw, &locks, 50).await;
    let (_, listening): (String, i64) = ask(&mut raw, "PUBSUB", &["NUMSUB", CHANNEL]).await;
    assert_eq!((listening, locks.usage().channels), (1, 1));
    guard.release().await.unwrap();
    all_in(waiting).await;
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn one_message_lets_one_waiter_try() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = slow(&server).await;
    let guard = locks.reentrant(NAME).unwrap().acquire(&locks.owner()).await.unwrap();
    let waiting = waiters(&mut raw, &locks, 20).await;
    // Messages without a release: each lets exactly one waiter look, who then sleeps again.
    let before = script_calls(&mut raw).await;
    for messages in 1..=3 {
        let _: i64 = raw.publish(CHANNEL, "0").await.unwrap();
        let expected = before + messages;
        let looked = async || script_calls(&mut raw).await >= expected;
        eventually("one waiter has looked", looked).await;
        // Time for a second one to look, which must not happen.
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(script_calls(&mut raw).await, expected);
    }
    guard.release().await.unwrap();
    all_in(waiting).await;
}

#[tokio::test]
async fn a_waiting_limit_is_kept() {
    let server = RedisServer::start().await;
    let locks = slow(&server).await;
    let lock = locks.reentrant(NAME).unwrap();
    let guard = lock.acquire(&locks.owner()).await.unwrap();
    for limit in [Duration::ZERO, Duration::from_millis(200)] {
        let started = Instant::now();
        let got = lock.acquire_within(&locks.owner(), limit).await.unwrap();
        assert!(got.is_none());
        let took = started.elapsed();
        assert!(took >= limit && took < limit + Duration::from_secs(2), "{took:?}");
    }
    guard.release().await.unwrap();
    let got = lock.acquire_within(&locks.owner(), Duration::MAX).await.unwrap();
    got.expect("it is free").release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn waiters_survive_a_reconnect() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = slow(&server).await;
    let lock = locks.reentrant(NAME).unwrap();
    let lost = lock.acquire(&locks.owner()).await.unwrap();
    let waiting = waiters(&mut raw, &locks, 3).await;
    // The lock comes free without a message, and the subscription is cut: whoever reconnects has
    // to assume that he missed one.
    let _: () = raw.del(NAME).await.unwrap();
    let cut: i64 = ask(&mut raw, "CLIENT", &["KILL", "TYPE", "pubsub"]).await;
    assert_eq!(cut, 1);
    all_in(waiting).await;
    drop(lost);

    // And the new subscription hears messages.
    let guard = lock.acquire(&locks.owner()).await.unwrap();
    let waiting = waiters(&mut raw, &locks, 3).await;
    guard.release().await.unwrap();
    all_in(waiting).await;
    nothing_left(&server, &[&locks]).await;
}
