//! Fencing tokens of a counter that expires: above all earlier ones, also of a counter that is gone.

use std::time::Duration;

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use redisson_lock::FencedLock;

use super::{eventually, long_locks, nothing_left, query};
use crate::support::redis_server::RedisServer;

const NAME: &str = "lock:order:1";
const COUNTER: &str = "redisson_lock_token:{lock:order:1}";

async fn next_token(lock: &FencedLock) -> u64 {
    let guard = lock.try_acquire().await.unwrap().expect("it is free");
    let token = guard.fence();
    guard.release().await.unwrap();
    token
}

/// The server's clock in microseconds.
async fn clock(raw: &mut MultiplexedConnection) -> u64 {
    let (seconds, microseconds): (u64, u64) = query(raw, "TIME", &[]).await;
    seconds * 1_000_000 + microseconds
}

#[tokio::test]
async fn tokens_rise_though_the_counter_has_expired_or_was_lost() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = long_locks(&server).await;
    let keep = Duration::from_millis(100);
    let lock = locks.fenced(NAME).with_expiring_counter(keep);
    let mut tokens = Vec::new();
    for _ in 0..3 {
        tokens.push(next_token(&lock).await);
        tokens.push(next_token(&lock).await);
        eventually("the counter expires", async || !raw.exists::<_, bool>(COUNTER).await.unwrap())
            .await;
    }
    tokens.push(next_token(&lock).await);
    let _: () = query(&mut raw, "FLUSHALL", &[]).await;
    tokens.push(next_token(&lock).await);
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn each_acquire_keeps_the_counter_for_the_whole_time_again() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = long_locks(&server).await;
    let lock = locks.fenced(NAME).with_expiring_counter(Duration::from_secs(3600));
    let before = clock(&mut raw).await;
    let token = next_token(&lock).await;
    assert!(before <= token && token <= clock(&mut raw).await, "{before} {token}");
    assert_eq!(raw.get::<_, String>(COUNTER).await.unwrap(), token.to_string());
    for _ in 0..2 {
        let left: i64 = raw.pttl(COUNTER).await.unwrap();
        assert!((3_500_000..=3_600_000).contains(&left), "{left}");
        let _: bool = raw.pexpire(COUNTER, 60_000).await.unwrap();
        next_token(&lock).await;
    }
    // A re-entry has the token of the first acquire.
    let owner = locks.owner();
    let outer = lock.acquire_as(&owner).await.unwrap();
    let inner = lock.acquire_as(&owner).await.unwrap();
    assert_eq!(inner.fence(), outer.fence());
    inner.release().await.unwrap();
    outer.release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn tokens_go_on_above_a_former_counter_and_above_a_clock_that_was_set_back() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = long_locks(&server).await;
    let plain = locks.fenced(NAME);
    assert_eq!((next_token(&plain).await, next_token(&plain).await), (1, 2));
    let lock = plain.clone().with_expiring_counter(Duration::from_secs(3600));
    let token = next_token(&lock).await;
    assert!(token > 1_000_000_000_000_000, "{token}");
    // A holder without the setting counts on.
    assert_eq!(next_token(&plain).await, token + 1);
    // As seen by a clock that is an hour behind that of the last token.
    let ahead = clock(&mut raw).await + 3_600_000_000;
    let _: () = query(&mut raw, "SET", &[COUNTER, &ahead.to_string()]).await;
    assert_eq!(next_token(&lock).await, ahead + 1);
    assert_eq!(next_token(&lock).await, ahead + 2);
    nothing_left(&server, &[&locks]).await;
}
