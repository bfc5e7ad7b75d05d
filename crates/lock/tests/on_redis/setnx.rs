//! The `SET NX` lock: key format, mutual exclusion, expired leases.

use std::time::Duration;

use redis::AsyncCommands;
use redisson_lock::{Error, LostReason};

use super::{LEASE, eventually, nothing_left, start};

const KEY: &str = "lock:setnx:order:1010";

#[tokio::test]
async fn a_held_lock_is_a_string_with_a_ttl() {
    let (server, mut raw, [locks]) = start(LEASE).await;
    let lock = locks.setnx(KEY, Duration::from_secs(10));
    let held = lock.try_acquire().await.unwrap().unwrap();
    let token: String = raw.get(KEY).await.unwrap();
    assert!(token.len() > 32, "{token}");
    let ttl: i64 = raw.pttl(KEY).await.unwrap();
    assert!((5_000..=10_000).contains(&ttl), "{ttl}");
    assert!(held.valid_for() > Duration::from_secs(5));
    assert!(lock.try_acquire().await.unwrap().is_none());
    held.release().await.unwrap();
    let again = lock.try_acquire().await.unwrap().unwrap();
    let next_token: String = raw.get(KEY).await.unwrap();
    assert_ne!(token, next_token, "each acquire has a token of its own");
    drop(again);
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn a_release_after_the_lease_leaves_the_next_owner_alone() {
    let (server, mut raw, [locks]) = start(LEASE).await;
    let short = locks.setnx(KEY, Duration::from_millis(100));
    let late = short.try_acquire().await.unwrap().unwrap();
    eventually("the lease ends", async || {
        !raw.exists::<_, bool>(KEY).await.unwrap()
    })
    .await;
    let later = locks
        .setnx(KEY, Duration::from_secs(60))
        .try_acquire()
        .await
        .unwrap()
        .unwrap();
    let token: String = raw.get(KEY).await.unwrap();
    assert_eq!(late.valid_for(), Duration::ZERO);
    assert_eq!(late.release().await, Err(Error::Lost(LostReason::Expired)));
    assert_eq!(raw.get::<_, String>(KEY).await.unwrap(), token);
    later.release().await.unwrap();
    // Its script is reloaded after a flush.
    let held = locks
        .setnx(KEY, Duration::from_secs(60))
        .try_acquire()
        .await
        .unwrap()
        .unwrap();
    let _: () = super::query(&mut raw, "SCRIPT", &["FLUSH", "SYNC"]).await;
    held.release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}
