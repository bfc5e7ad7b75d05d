//! A lock that was taken away is reported at once, by client tracking, and not by the next renewal:
//! in these tests that would be up to 40 s later.

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redisson_lock::kind::LockKind;
use redisson_lock::{Error, Guard, Lock, Locks, LostReason};

use super::{LONG_LEASE, calls_of, eventually, nothing_left, query, soon, start};
use testkit::raw::{connections, info};
use testkit::redis_server::RedisServer;

/// Waits until the server tracks so many keys.
pub async fn tracked(raw: &mut MultiplexedConnection, keys: u64) {
    eventually("the server tracks the keys", async || {
        info(raw, "stats", "tracking_total_keys").await == keys
    })
    .await;
}

async fn forced<K: LockKind>(server: &RedisServer, lock: Lock<K>, other: Lock<K>) {
    let mut raw = server.conn().await;
    let before = info(&mut raw, "stats", "tracking_total_keys").await;
    let guard = lock.acquire().await.unwrap();
    tracked(&mut raw, before + 1).await;
    assert!(other.force_unlock().await.unwrap());
    assert_eq!(soon("at once", guard.lost()).await, LostReason::Expired);
    assert_eq!(guard.valid_for(), Duration::ZERO);
    assert_eq!(guard.release().await, Err(Error::Lost(LostReason::Expired)));
}

#[tokio::test]
async fn a_forced_unlock_is_reported_at_once_by_every_kind() {
    let (server, _, [here, there]) = &start(LONG_LEASE).await;
    let both = |name| (here.read_write(name), there.read_write(name));
    let ((here_r, there_r), (here_w, there_w)) = (both("r"), both("w"));
    let reentrant = |locks: &Locks| locks.lock("reentrant");
    forced(server, reentrant(here), reentrant(there)).await;
    forced(server, here.fenced("f"), there.fenced("f")).await;
    forced(server, here.fair("q"), there.fair("q")).await;
    forced(server, here_r.read().clone(), there_r.read().clone()).await;
    forced(server, here_w.write().clone(), there_w.write().clone()).await;
    let fixed = |locks: &Locks| locks.lock("fixed").without_renewal(Duration::from_secs(60));
    forced(server, fixed(here), fixed(there)).await;
    nothing_left(server, &[here, there]).await;
}

pub async fn held_and_tracked(server: &RedisServer, locks: &Locks, name: &str) -> Guard {
    let mut raw = server.conn().await;
    let before = info(&mut raw, "stats", "tracking_total_keys").await;
    let guard = locks.lock(name).acquire().await.unwrap();
    tracked(&mut raw, before + 1).await;
    guard
}

#[tokio::test]
async fn every_way_to_lose_a_lock_is_reported_at_once_with_its_reason() {
    let (server, mut raw, [locks]) = start(LONG_LEASE).await;
    let ways: [(&[&[&str]], LostReason); 5] = [
        (&[&["DEL", "deleted"]], LostReason::Expired),
        (&[&["PEXPIRE", "expired", "1"]], LostReason::Expired),
        (&[&["RENAME", "renamed", "other"]], LostReason::Expired),
        (
            &[&["DEL", "taken"], &["HSET", "taken", "another:1", "1"]],
            LostReason::Taken,
        ),
        (&[&["FLUSHALL"]], LostReason::Expired),
    ];
    for (commands, expected) in ways {
        let name = commands[0].get(1).copied().unwrap_or("flushed");
        let guard = held_and_tracked(&server, &locks, name).await;
        let mut all = redis::pipe();
        all.atomic();
        for command in commands {
            let (first, rest) = command.split_first().unwrap();
            all.cmd(first);
            for argument in rest {
                all.arg(argument);
            }
        }
        let _: redis::Value = all.query_async(&mut raw).await.unwrap();
        assert_eq!(soon("at once", guard.lost()).await, expected, "{name}");
    }
    let _: () = query(&mut raw, "FLUSHALL", &[]).await;
    nothing_left(&server, &[&locks]).await;
}

/// The first look at a key that is tracked from now on tells what happened before.
#[tokio::test]
async fn a_loss_before_it_is_tracked_is_reported_when_it_is() {
    let (server, _, [locks]) = start(LONG_LEASE).await;
    let guard = locks.lock("lock").acquire().await.unwrap();
    let _: i64 = query(&mut server.conn().await, "DEL", &["lock"]).await;
    assert_eq!(soon("at once", guard.lost()).await, LostReason::Expired);
    drop(guard);
    nothing_left(&server, &[&locks]).await;
}

/// The server reports the release of a tracked lock too.
#[tokio::test]
async fn releases_of_tracked_locks_are_no_losses() {
    let (server, mut raw, [locks]) = start(LONG_LEASE).await;
    for _ in 0..3 {
        let mut guards = Vec::new();
        for number in 0..200 {
            let lock = locks.lock(&format!("lock:{number}"));
            guards.push(lock.acquire().await.unwrap());
        }
        tracked(&mut raw, 200).await;
        let released = futures_util::future::join_all(guards.into_iter().map(Guard::release)).await;
        assert!(released.iter().all(Result::is_ok), "{released:?}");
        tracked(&mut raw, 0).await;
    }
    let lost: u64 = locks.stats().iter().map(|stats| stats.lost.total()).sum();
    assert_eq!(lost, 0);
    nothing_left(&server, &[&locks]).await;
}

/// No connection and no command more than without tracking, for holds as a busy service has them.
#[tokio::test]
async fn short_holds_are_not_tracked() {
    let (server, mut raw, [locks]) = start(LONG_LEASE).await;
    let (lock, owner) = (locks.lock("lock"), locks.owner());
    let end = Instant::now() + Duration::from_millis(2_500);
    let before = connections(&mut raw).await;
    while Instant::now() < end {
        lock.acquire_as(&owner)
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
    assert_eq!(info(&mut raw, "clients", "tracking_clients").await, 0);
    assert_eq!(connections(&mut raw).await, before);
    assert_eq!(calls_of(&mut raw, "hmget").await, 0);
    nothing_left(&server, &[&locks]).await;
}

/// The holder's own commands change the key as well, and so do other readers.
#[tokio::test]
async fn own_and_foreign_commands_are_no_loss() {
    let (server, mut raw, [locks]) = start(Duration::from_secs(3)).await;
    let lock = locks.read_write("lock").read().clone();
    let owner = locks.owner();
    let guard = lock.acquire_as(&owner).await.unwrap();
    tracked(&mut raw, 1).await;
    let end = Instant::now() + Duration::from_secs(4);
    let mut changes = 0;
    while Instant::now() < end {
        let again = lock.acquire_as(&owner).await.unwrap();
        let other = lock.acquire().await.unwrap();
        again.release().await.unwrap();
        other.release().await.unwrap();
        changes += 4;
    }
    let reads = calls_of(&mut raw, "hmget").await;
    println!("{changes} changes, {reads} reads");
    assert!(reads < 300, "{reads} reads for {changes} changes");
    assert!(!guard.valid_for().is_zero());
    guard.release().await.unwrap();
    let lost: u64 = locks.stats().iter().map(|stats| stats.lost.total()).sum();
    assert_eq!(lost, 0);
    tracked(&mut raw, 0).await;
    nothing_left(&server, &[&locks]).await;
}
