//! The reentrant lock: re-entry, renewal by the watchdog, fixed leases.

use std::time::Duration;

use redis::AsyncCommands;
use redisson_lock::{Guard, LockConfig, Locks, LostReason};

use super::{LEASE, eventually, locks, nothing_left, query, renewed, soon};
use crate::support::redis_server::RedisServer;

#[tokio::test]
async fn re_entry_from_many_tasks_counts_each_acquire() {
    let server = RedisServer::start().await;
    let locks = locks(&server).await;
    let owner = locks.owner();
    let lock = locks.lock("lock:order:1");
    let tasks: Vec<_> = (0..16)
        .map(|_| {
            let lock = lock.clone();
            tokio::spawn(async move { lock.acquire_as(&owner).await.unwrap() })
        })
        .collect();
    let mut guards = Vec::new();
    for task in tasks {
        guards.push(task.await.unwrap());
    }
    assert_eq!(lock.hold_count(&owner).await.unwrap(), 16);
    let last = guards.pop().unwrap();
    // Half are released, half dropped; the last guard keeps the lock.
    for (i, guard) in guards.into_iter().enumerate() {
        if i % 2 == 0 { guard.release().await.unwrap() } else { drop(guard) }
    }
    eventually("one hold remains", async || lock.hold_count(&owner).await.unwrap() == 1).await;
    last.release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn the_watchdog_renews_until_release() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = locks(&server).await;
    let owner = locks.owner();
    let lock = locks.lock("lock:order:1");
    let guard = lock.acquire_as(&owner).await.unwrap();

    for _ in 0..4 {
        renewed(|| guard.valid_for()).await;
        let left = lock.remaining().await.unwrap();
        assert!(left.is_some_and(|left| left <= LEASE), "{left:?}");
    }
    assert_eq!(lock.hold_count(&owner).await.unwrap(), 1);
    guard.release().await.unwrap();
    assert_eq!(locks.usage().watched, 0);

    // Renewal has stopped: an identical hash, written by hand, expires, and no script runs.
    let _: () = raw.hset("lock:order:1", owner.to_string(), 1).await.unwrap();
    let _: bool = raw.pexpire("lock:order:1", LEASE.as_millis() as i64).await.unwrap();
    let _: () = query(&mut raw, "CONFIG", &["RESETSTAT"]).await;
    eventually("the hand-written hold expires", async || !lock.is_locked().await.unwrap()).await;
    let stats: String = query(&mut raw, "INFO", &["commandstats"]).await;
    assert!(!stats.contains("cmdstat_evalsha"), "{stats}");
}

#[tokio::test]
async fn a_failing_renewal_does_not_delay_others() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = locks(&server).await;
    let owner = locks.owner();
    let bad = locks.lock("bad").acquire_as(&owner).await.unwrap();
    let mut good = Vec::new();
    for i in 0..50 {
        good.push(locks.lock(&format!("good:{i}")).acquire_as(&owner).await.unwrap());
    }
    let bad_lost = bad.lost();
    let _: () = raw.set("bad", "of another type").await.unwrap();
    assert_eq!(soon("the loss is detected", bad_lost).await, LostReason::Unreachable);
    renewed(|| good.iter().map(Guard::valid_for).min().unwrap()).await;
    for guard in good {
        assert!(guard.valid_for() > Duration::ZERO);
        guard.release().await.unwrap();
    }
    assert!(bad.release().await.is_err());
}

#[tokio::test]
async fn more_locks_than_one_renewal_batch_all_stay_held() {
    let server = RedisServer::start().await;
    // With the lease of the other tests these would be thousands of renewals a second.
    let lease = Duration::from_secs(6);
    let config = LockConfig::default().with_lease(lease);
    let locks = Locks::connect(server.client(), config).await.unwrap();
    let owner = locks.owner();
    let mut guards = Vec::new();
    for i in 0..800 {
        guards.push(locks.lock(&format!("lock:{i}")).acquire_as(&owner).await.unwrap());
    }
    for _ in 0..2 {
        renewed(|| guards.iter().map(Guard::valid_for).min().unwrap()).await;
    }
    let lost = guards.iter().filter(|guard| guard.valid_for().is_zero()).count();
    assert_eq!((lost, locks.usage().watched), (0, 800));
    drop(guards);
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn re_entry_never_shortens_a_lease() {
    let server = RedisServer::start().await;
    let locks = locks(&server).await;
    let owner = locks.owner();
    let long = locks.lock("lock:order:1").without_renewal(Duration::from_secs(60));
    let short = long.clone().without_renewal(Duration::from_millis(50));
    let outer = long.acquire_as(&owner).await.unwrap();
    let inner = short.acquire_as(&owner).await.unwrap();
    assert!(long.remaining().await.unwrap().unwrap() > Duration::from_secs(50));
    inner.release().await.unwrap();
    assert!(outer.valid_for() > Duration::from_secs(50));
    assert!(long.remaining().await.unwrap().unwrap() > Duration::from_secs(50));
    outer.release().await.unwrap();
}

#[tokio::test]
async fn extreme_leases_are_accepted() {
    let server = RedisServer::start().await;
    let locks = locks(&server).await;
    let lock = locks.lock("lock:order:1");
    let endless = lock.clone().without_renewal(Duration::MAX).acquire().await.unwrap();
    endless.release().await.unwrap();
    // It becomes 1 ms, which ends at once; what matters is that the lock becomes free.
    let expired = lock.clone().without_renewal(Duration::ZERO).try_acquire().await;
    drop(expired);
    let next = lock.acquire_within(Duration::from_secs(10)).await.unwrap();
    next.expect("the lock is free").release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}
