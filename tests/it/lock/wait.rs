//! Waiting: woken by messages, limited in time.

use std::time::{Duration, Instant};

use redis::AsyncCommands;
use seckill::lock::{LockConfig, Locks};

use super::{ask, eventually, nothing_left};
use crate::support::redis_server::RedisServer;

const NAME: &str = "lock:order:1";
const CHANNEL: &str = "redisson_lock__channel:{lock:order:1}";

/// Locks with the full lease of 30 s, so that a wake-up in time can only come from a message.
async fn slow(server: &RedisServer) -> Locks {
    Locks::connect(server.client(), LockConfig::default()).await.expect("connect")
}

/// Wait until so many connections listen on the lock's channel.
async fn listeners(server: &RedisServer, count: i64) {
    let mut conn = server.conn().await;
    eventually("the waiters listen", async || {
        let (_, now): (String, i64) = ask(&mut conn, "PUBSUB", &["NUMSUB", CHANNEL]).await;
        now == count
    })
    .await;
}

#[tokio::test]
async fn a_release_wakes_a_waiter_of_another_process() {
    let server = RedisServer::start().await;
    let (here, there) = (slow(&server).await, slow(&server).await);
    let guard = here.reentrant(NAME).unwrap().acquire(&here.owner()).await.unwrap();
    let waiter = tokio::spawn({
        let there = there.clone();
        async move { there.reentrant(NAME).unwrap().acquire(&there.owner()).await.unwrap() }
    });
    listeners(&server, 1).await;
    let released = Instant::now();
    guard.release().await.unwrap();
    let guard = waiter.await.unwrap();
    // The lease has some 30 s left; a busy machine may take its time, but not that long.
    assert!(released.elapsed() < Duration::from_secs(5), "{:?}", released.elapsed());
    guard.release().await.unwrap();
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
    let waiter = tokio::spawn({
        let locks = locks.clone();
        async move { locks.reentrant(NAME).unwrap().acquire(&locks.owner()).await.unwrap() }
    });
    listeners(&server, 1).await;
    let released = Instant::now();
    let _: () = raw.del(NAME).await.unwrap();
    let heard: i64 = raw.publish(CHANNEL, "0").await.unwrap();
    assert_eq!(heard, 1);
    let guard = waiter.await.unwrap();
    assert!(released.elapsed() < Duration::from_secs(5), "{:?}", released.elapsed());
    guard.release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn a_waiter_wakes_when_a_lease_ends_without_a_message() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = slow(&server).await;
    let _: () = raw.hset(NAME, "a client that crashed", 1).await.unwrap();
    let _: bool = raw.pexpire(NAME, 400).await.unwrap();
    let guard = locks.reentrant(NAME).unwrap().acquire(&locks.owner()).await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn many_waiters_share_one_subscription_and_each_gets_in() {
    let server = RedisServer::start().await;
    let locks = slow(&server).await;
    let guard = locks.reentrant(NAME).unwrap().acquire(&locks.owner()).await.unwrap();
    let started = Instant::now();
    let waiters: Vec<_> = (0..50)
        .map(|_| {
            let locks = locks.clone();
            tokio::spawn(async move {
                let lock = locks.reentrant(NAME).unwrap();
                lock.acquire(&locks.owner()).await.unwrap().release().await.unwrap();
            })
        })
        .collect();
    listeners(&server, 1).await;
    assert_eq!(locks.usage().channels, 1);
    guard.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap();
    }
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    nothing_left(&server, &[&locks]).await;
}

/// How many scripts the server has run.
async fn script_calls(raw: &mut redis::aio::MultiplexedConnection) -> i64 {
    let stats: String = ask(raw, "INFO", &["commandstats"]).await;
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:"));
    let calls = line.and_then(|line| line.split_once("calls=")?.1.split(',').next());
    calls.map_or(0, |calls| calls.parse().expect("a number"))
}

#[tokio::test]
async fn one_message_lets_one_waiter_try() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = slow(&server).await;
    let guard = locks.reentrant(NAME).unwrap().acquire(&locks.owner()).await.unwrap();
    let taken = script_calls(&mut raw).await;
    let waiters: Vec<_> = (0..20)
        .map(|_| {
            let locks = locks.clone();
            tokio::spawn(async move {
                let lock = locks.reentrant(NAME).unwrap();
                lock.acquire(&locks.owner()).await.unwrap().release().await.unwrap();
            })
        })
        .collect();
    // Each waiter tries twice before it sleeps.
    let before = taken + 2 * 20;
    eventually("all waiters sleep", async || script_calls(&mut raw).await == before).await;
    // A message without a release: exactly one waiter looks, and sleeps again.
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
    for waiter in waiters {
        waiter.await.unwrap();
    }
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
    let guard = lock.acquire(&locks.owner()).await.unwrap();
    let waiter = tokio::spawn({
        let (lock, owner) = (lock.clone(), locks.owner());
        async move { lock.acquire(&owner).await.unwrap() }
    });
    listeners(&server, 1).await;
    // The lock comes free without a message, and the subscription is cut: whoever reconnects has
    // to assume that he missed one.
    let _: () = raw.del(NAME).await.unwrap();
    let cut: i64 = ask(&mut raw, "CLIENT", &["KILL", "TYPE", "pubsub"]).await;
    assert_eq!(cut, 1);
    let started = Instant::now();
    let got = waiter.await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    got.release().await.unwrap();
    drop(guard);

    // And the new subscription hears messages.
    let guard = lock.acquire(&locks.owner()).await.unwrap();
    let waiter = tokio::spawn({
        let (lock, owner) = (lock.clone(), locks.owner());
        async move { lock.acquire(&owner).await.unwrap() }
    });
    listeners(&server, 1).await;
    guard.release().await.unwrap();
    waiter.await.unwrap().release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}
