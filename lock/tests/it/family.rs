//! What every lock with an owner and a hold promises, run over each member of the family.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use redis::AsyncCommands;
use redisson_lock::kind::LockKind;
use redisson_lock::{Error, Lock, LockConfig, LockUsage, Locks, LostReason, Owner, Server};

use super::exclusion::{increment, lost_updates};
use super::{LEASE, ask, eventually, locks, nothing_left, soon};
use crate::support::proxy::{Mode, Proxy};
use crate::support::redis_cluster::RedisCluster;
use crate::support::redis_server::RedisServer;

const NAME: &str = "lock:order:1";

/// The field of `owner` in the lock's hash.
fn field<K: LockKind>(owner: &Owner) -> String {
    let suffix = if K::KIND.to_string() == "write" { ":write" } else { "" };
    format!("{owner}{suffix}")
}

/// Somebody else holds the lock, in a way that excludes every member of the family.
async fn held_by_somebody_else(raw: &mut redis::aio::MultiplexedConnection, lease: i64) {
    let fields = [("mode", "write"), ("somebody:1", "1"), ("somebody:1:write", "1")];
    let _: () = raw.hset_multiple(NAME, &fields).await.unwrap();
    let _: bool = raw.pexpire(NAME, lease).await.unwrap();
}

async fn guards_count_and_leave_in_any_order<K: LockKind>(lock: fn(&Locks) -> Lock<K>) {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = locks(&server).await;
    let (lock, me) = (lock(&locks), locks.owner());
    for outer_first in [true, false] {
        let outer = lock.acquire(&me).await.unwrap();
        let inner = lock.try_acquire(&me).await.unwrap().unwrap();
        let innermost = lock.acquire_within(&me, LEASE).await.unwrap().unwrap();
        assert_eq!((outer.owner(), outer.name()), (&me, NAME));
        assert_eq!(lock.hold_count(&me).await.unwrap(), 3);
        let depth: u32 = raw.hget(NAME, field::<K>(&me)).await.unwrap();
        assert_eq!(depth, 3);
        assert!(lock.is_locked().await.unwrap());
        assert!(lock.remaining().await.unwrap().unwrap() <= LEASE);
        let (first, last) = if outer_first { (outer, innermost) } else { (innermost, outer) };
        first.release().await.unwrap();
        drop(inner);
        eventually("one is left", async || lock.hold_count(&me).await.unwrap() == 1).await;
        assert!(last.valid_for() > Duration::ZERO);
        last.release().await.unwrap();
        assert!(!lock.is_locked().await.unwrap());
    }
    nothing_left(&server, &[&locks]).await;
}

async fn no_update_is_lost<K: LockKind>(lock: fn(&Locks) -> Lock<K>) {
    let server = RedisServer::start().await;
    let both = [locks(&server).await, locks(&server).await];
    let lost =
        lost_updates(both.clone(), move |locks: Locks, counter: Arc<AtomicU32>| async move {
            let guard = lock(&locks).acquire(&locks.owner()).await.unwrap();
            increment(&counter).await;
            guard.release().await.unwrap();
        })
        .await;
    assert_eq!(lost, 0);
    nothing_left(&server, &[&both[0], &both[1]]).await;
}

async fn the_watchdog_keeps_it_past_its_lease<K: LockKind>(lock: fn(&Locks) -> Lock<K>) {
    let server = RedisServer::start().await;
    let locks = locks(&server).await;
    let (lock, me) = (lock(&locks), locks.owner());
    let outer = lock.acquire(&me).await.unwrap();
    let inner = lock.acquire(&me).await.unwrap();
    let end = Instant::now() + LEASE * 3;
    while Instant::now() < end {
        assert!(lock.remaining().await.unwrap().is_some_and(|left| left <= LEASE));
        assert!(outer.valid_for() > Duration::ZERO);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(lock.hold_count(&me).await.unwrap(), 2);
    inner.release().await.unwrap();
    outer.release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}

async fn a_fixed_lease_ends_by_itself<K: LockKind>(lock: fn(&Locks) -> Lock<K>) {
    let server = RedisServer::start().await;
    let locks = locks(&server).await;
    let lock = lock(&locks).with_lease(Duration::from_millis(300));
    let guard = lock.acquire(&locks.owner()).await.unwrap();
    assert_eq!(soon("the loss is noticed", guard.lost()).await, LostReason::Expired);
    let next = soon("the key expires", lock.acquire(&locks.owner())).await.unwrap();
    assert!(guard.release().await.is_err());
    assert!(next.valid_for() > Duration::ZERO, "a late owner took it away");
    drop(next);
    nothing_left(&server, &[&locks]).await;
}

async fn a_lost_reply_counts_once<K: LockKind>(lock: fn(&Locks) -> Lock<K>) {
    let server = RedisServer::start().await;
    let lossy = Proxy::start(server.address()).await.unwrap();
    let locks = Locks::connect(lossy.redis(), LockConfig::default()).await.unwrap();
    let (lock, me) = (lock(&locks), locks.owner());
    // Once without loss, so that the scripts are known and the next reply is the script's.
    lock.acquire(&me).await.unwrap().release().await.unwrap();
    let mut guards = Vec::new();
    for depth in 1..=2 {
        lossy.set(Mode::LoseReply);
        guards.push(lock.try_acquire(&me).await.unwrap().expect("it is free or ours"));
        assert!(lossy.mode() == Mode::Forward);
        assert_eq!(lock.hold_count(&me).await.unwrap(), depth);
    }
    for left in [1, 0] {
        lossy.set(Mode::LoseReply);
        guards.pop().unwrap().release().await.unwrap();
        assert!(lossy.mode() == Mode::Forward);
        assert_eq!(lock.hold_count(&me).await.unwrap(), left);
    }
    nothing_left(&server, &[&locks]).await;
}

async fn a_lost_lock_says_why<K: LockKind>(lock: fn(&Locks) -> Lock<K>) {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = locks(&server).await;
    let (lock, me) = (lock(&locks), locks.owner());
    let guard = lock.acquire(&me).await.unwrap();
    let _: () = raw.del(NAME).await.unwrap();
    assert_eq!(soon("it is noticed", guard.lost()).await, LostReason::Expired);
    assert_eq!(guard.release().await, Err(Error::Lost(LostReason::Expired)));

    let guard = lock.acquire(&me).await.unwrap();
    let _: () = raw.del(NAME).await.unwrap();
    held_by_somebody_else(&mut raw, 60_000).await;
    assert_eq!(soon("it is noticed", guard.lost()).await, LostReason::Taken);
    drop(guard);
    assert!(lock.try_acquire(&me).await.unwrap().is_none());
    let _: () = raw.del(NAME).await.unwrap();

    // Gone, and its owner has not noticed yet.
    let slow = lock.clone().with_lease(Duration::from_secs(60));
    let guard = slow.acquire(&me).await.unwrap();
    assert!(lock.force_unlock().await.unwrap());
    assert!(!lock.force_unlock().await.unwrap());
    assert_eq!(guard.release().await, Err(Error::NotHeld));
    let outer = slow.acquire(&me).await.unwrap();
    assert!(lock.force_unlock().await.unwrap());
    let lost = outer.lost();
    let inner = lock.acquire(&me).await.unwrap();
    assert_eq!(soon("re-entry notices", lost).await, LostReason::Expired);
    assert_eq!(lock.hold_count(&me).await.unwrap(), 1);
    assert!(outer.release().await.is_err());
    inner.release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}

async fn scripts_come_back_after_a_flush<K: LockKind>(lock: fn(&Locks) -> Lock<K>) {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = locks(&server).await;
    let (lock, me) = (lock(&locks), locks.owner());
    let mut flush = async || {
        let _: () = ask(&mut raw, "SCRIPT", &["FLUSH", "SYNC"]).await;
    };
    flush().await;
    let guard = lock.try_acquire(&me).await.unwrap().unwrap();
    flush().await;
    // The watchdog's script too: the lock outlives its lease.
    tokio::time::sleep(LEASE + LEASE / 2).await;
    assert_eq!(lock.hold_count(&me).await.unwrap(), 1);
    flush().await;
    guard.release().await.unwrap();
    flush().await;
    assert!(!lock.force_unlock().await.unwrap());
}

async fn a_key_of_another_type_is_refused_and_kept<K: LockKind>(lock: fn(&Locks) -> Lock<K>) {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = locks(&server).await;
    let _: () = raw.set(NAME, "text").await.unwrap();
    let error = lock(&locks).try_acquire(&locks.owner()).await.unwrap_err();
    assert!(matches!(error, Error::Rejected { .. }), "{error:?}");
    let keys: Vec<String> = ask(&mut raw, "KEYS", &["*"]).await;
    assert_eq!(keys, [NAME]);
    assert_eq!(raw.get::<_, String>(NAME).await.unwrap(), "text");
}

/// Each promise as a test of each member.
macro_rules! family {
    ($($member:ident: $make:expr;)+) => {
        $(mod $member {
            use super::*;
            family!(@ $make;
                guards_count_and_leave_in_any_order the_watchdog_keeps_it_past_its_lease
                a_fixed_lease_ends_by_itself a_lost_reply_counts_once a_lost_lock_says_why
                scripts_come_back_after_a_flush
                a_key_of_another_type_is_refused_and_kept);
        })+
    };
    (@ $make:expr; $($law:ident)+) => {
        $(#[tokio::test]
        async fn $law() {
            super::$law($make).await;
        })+
    };
}

family! {
    fenced: |locks| locks.fenced(NAME).unwrap();
    fair: |locks| locks.fair(NAME).unwrap();
    read: |locks| locks.read_write(NAME).unwrap().read().clone();
    write: |locks| locks.read_write(NAME).unwrap().write().clone();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_that_exclude_lose_no_update() {
    no_update_is_lost(|locks| locks.fenced(NAME).unwrap()).await;
    no_update_is_lost(|locks| locks.fair(NAME).unwrap()).await;
    no_update_is_lost(|locks| locks.read_write(NAME).unwrap().write().clone()).await;
}

#[tokio::test]
async fn one_owner_takes_a_name_in_one_way() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = locks(&server).await;
    let me = locks.owner();
    let guard = locks.reentrant(NAME).unwrap().acquire(&me).await.unwrap();
    let error = locks.fair(NAME).unwrap().try_acquire(&me).await.unwrap_err();
    assert!(matches!(error, Error::OtherKind { .. }), "{error:?}");
    let error = locks.fenced(NAME).unwrap().acquire(&me).await.unwrap_err();
    assert!(matches!(error, Error::OtherKind { .. }), "{error:?}");
    let error = locks.read_write(NAME).unwrap().read().try_acquire(&me).await.unwrap_err();
    assert!(matches!(error, Error::OtherKind { .. }), "{error:?}");
    // Other owners are kept out by any of them, and nothing is added to a lock of another shape.
    let other = locks.owner();
    assert!(locks.fair(NAME).unwrap().try_acquire(&other).await.unwrap().is_none());
    assert!(locks.fenced(NAME).unwrap().try_acquire(&other).await.unwrap().is_none());
    let both = locks.read_write(NAME).unwrap();
    assert!(both.read().try_acquire(&other).await.unwrap().is_none());
    assert!(both.write().try_acquire(&other).await.unwrap().is_none());
    let fields: Vec<String> = raw.hkeys(NAME).await.unwrap();
    assert_eq!(fields, [me.to_string()]);
    guard.release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}

/// All keys of a lock and the channels of all its waiters are in one slot, whichever it is.
#[tokio::test]
async fn on_a_cluster_every_member_is_taken_waited_for_and_freed() {
    async fn one<K: LockKind>(cluster: &RedisCluster, lock: impl Fn(&Locks) -> Lock<K>) {
        let server = || Server::cluster(cluster.urls()).unwrap();
        let here = Locks::connect(server(), LockConfig::default()).await.unwrap();
        let there = Locks::connect(server(), LockConfig::default()).await.unwrap();
        let me = here.owner();
        let guard = lock(&here).acquire(&me).await.unwrap();
        let again = lock(&here).acquire(&me).await.unwrap();
        held_elsewhere_and_woken(&lock(&there), &there, async || {
            again.release().await.unwrap();
            guard.release().await.unwrap();
        })
        .await;
        let kept = lock(&here).acquire(&me).await.unwrap();
        assert!(lock(&here).is_locked().await.unwrap());
        assert!(lock(&here).force_unlock().await.unwrap());
        drop(kept);
        eventually("nothing is left", async || {
            [&here, &there].iter().all(|locks| locks.usage() == LockUsage::default())
        })
        .await;
    }
    async fn held_elsewhere_and_woken<K: LockKind>(
        lock: &Lock<K>,
        locks: &Locks,
        release: impl AsyncFnOnce(),
    ) {
        let waiting = tokio::spawn({
            let (lock, me) = (lock.clone(), locks.owner());
            async move { lock.acquire(&me).await.unwrap().release().await.unwrap() }
        });
        if K::KIND.to_string() != "read" {
            eventually("it waits", async || locks.usage().channels == 1).await;
            // Long enough to listen; should it not be, the second look finds the lock.
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert!(!waiting.is_finished(), "it got in");
        }
        let freed = Instant::now();
        release().await;
        soon("it gets in", waiting).await.unwrap();
        assert!(freed.elapsed() < Duration::from_secs(8), "{:?}: by a timer", freed.elapsed());
    }
    let cluster = RedisCluster::start().await;
    for name in ["a", "b", "c", "d", "x:{7}"] {
        one(&cluster, |locks| locks.reentrant(name).unwrap()).await;
        one(&cluster, |locks| locks.fenced(name).unwrap()).await;
        one(&cluster, |locks| locks.fair(name).unwrap()).await;
        one(&cluster, |locks| locks.read_write(name).unwrap().read().clone()).await;
        one(&cluster, |locks| locks.read_write(name).unwrap().write().clone()).await;
    }
}
