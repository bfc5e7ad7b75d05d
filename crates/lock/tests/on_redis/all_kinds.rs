//! Tests that every kind of lock has to pass: re-entry, leases, renewal, lost replies, loss, script
//! loading, wrong key types.

use std::time::Duration;

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use redisson_lock::kind::LockKind;
use redisson_lock::{Error, Lock, LockConfig, LockUsage, Locks, LostReason, Owner, Server};

use super::{
    LEASE, TIMEOUT, connected, eventually, losing_reply, nothing_left, query, renewed, soon, start,
    start_behind_proxy, wait_for,
};
use testkit::redis_cluster::RedisCluster;

const NAME: &str = "lock:order:1";

/// The field of `owner` in the lock's hash.
fn field<K: LockKind>(owner: &Owner) -> String {
    let suffix = if K::KIND.to_string() == "write" {
        ":write"
    } else {
        ""
    };
    format!("{owner}{suffix}")
}

/// Another owner holds the lock, in a form that excludes every kind of lock.
pub(super) async fn hold_as_another_owner(raw: &mut MultiplexedConnection, name: &str) {
    let fields = [
        ("mode", "write"),
        ("another:1", "1"),
        ("another:1:write", "1"),
    ];
    // At once, so that nobody sees the lock free.
    let mut take = redis::pipe();
    take.atomic()
        .del(name)
        .hset_multiple(name, &fields)
        .pexpire(name, 60_000);
    take.exec_async(raw).await.unwrap();
}

async fn guards_of_one_owner_are_released_in_any_order<K: LockKind>(lock: fn(&Locks) -> Lock<K>) {
    let (server, mut raw, [locks]) = start(LEASE).await;
    let lock = lock(&locks);
    let owner = locks.owner();
    for outer_first in [true, false] {
        let outer = lock.acquire_as(&owner).await.unwrap();
        let inner = lock.try_acquire_as(&owner).await.unwrap().unwrap();
        let innermost = lock
            .acquire_within_as(&owner, LEASE)
            .await
            .unwrap()
            .unwrap();
        assert_eq!((outer.owner(), outer.name()), (&owner, NAME));
        assert_eq!(lock.hold_count(&owner).await.unwrap(), 3);
        let depth: u32 = raw.hget(NAME, field::<K>(&owner)).await.unwrap();
        assert_eq!(depth, 3);
        assert!(lock.is_locked().await.unwrap());
        assert!(lock.remaining().await.unwrap().unwrap() <= LEASE);
        let (first, last) = if outer_first {
            (outer, innermost)
        } else {
            (innermost, outer)
        };
        first.release().await.unwrap();
        drop(inner);
        eventually("one is left", async || {
            lock.hold_count(&owner).await.unwrap() == 1
        })
        .await;
        assert!(last.valid_for() > Duration::ZERO);
        last.release().await.unwrap();
        assert!(!lock.is_locked().await.unwrap());
    }
    nothing_left(&server, &[&locks]).await;
}

async fn re_entry_from_many_tasks_counts_each_acquire<K: LockKind>(lock: fn(&Locks) -> Lock<K>) {
    let (server, _, [locks]) = start(LEASE).await;
    let lock = lock(&locks);
    let owner = locks.owner();
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
        if i % 2 == 0 {
            guard.release().await.unwrap()
        } else {
            drop(guard)
        }
    }
    eventually("one hold remains", async || {
        lock.hold_count(&owner).await.unwrap() == 1
    })
    .await;
    last.release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}

async fn re_entry_never_shortens_a_lease<K: LockKind>(lock: fn(&Locks) -> Lock<K>) {
    let (_server, _, [locks]) = start(LEASE).await;
    let lock = lock(&locks);
    let owner = locks.owner();
    let long = lock.without_renewal(Duration::from_secs(60));
    let short = long.clone().without_renewal(Duration::from_millis(50));
    let outer = long.acquire_as(&owner).await.unwrap();
    let inner = short.acquire_as(&owner).await.unwrap();
    assert!(long.remaining().await.unwrap().unwrap() > Duration::from_secs(50));
    inner.release().await.unwrap();
    assert!(outer.valid_for() > Duration::from_secs(50));
    assert!(long.remaining().await.unwrap().unwrap() > Duration::from_secs(50));
    outer.release().await.unwrap();
}

async fn a_renewal_never_shortens_a_lease<K: LockKind>(lock: fn(&Locks) -> Lock<K>) {
    let (_server, mut raw, [locks]) = start(LEASE).await;
    let lock = lock(&locks);
    let guard = lock.acquire().await.unwrap();
    // As if the owner had re-entered the lock with a longer lease, and the reply had not come yet.
    let _: bool = raw.pexpire(NAME, 60_000).await.unwrap();
    for _ in 0..2 {
        renewed(|| guard.valid_for()).await;
    }
    assert!(lock.remaining().await.unwrap().unwrap() > LEASE);
    assert!(
        guard.valid_for() <= LEASE,
        "what this process asked for is all it counts on"
    );
    guard.release().await.unwrap();
}

async fn a_fixed_lease_expires<K: LockKind>(lock: fn(&Locks) -> Lock<K>) {
    let (server, _, [locks]) = start(LEASE).await;
    let lock = lock(&locks).without_renewal(Duration::from_millis(500));
    let guard = lock.acquire().await.unwrap();
    assert_eq!(
        soon("the loss is detected", guard.lost()).await,
        LostReason::Expired
    );
    let next = soon("the key expires", lock.acquire()).await.unwrap();
    assert_eq!(guard.release().await, Err(Error::Lost(LostReason::Expired)));
    assert!(
        next.valid_for() > Duration::ZERO,
        "the late release removed the next hold"
    );
    drop(next);
    nothing_left(&server, &[&locks]).await;
}

async fn a_command_with_a_lost_reply_counts_once<K: LockKind>(lock: fn(&Locks) -> Lock<K>) {
    let (server, proxy, locks) = start_behind_proxy(LockConfig::default()).await;
    let lock = lock(&locks);
    let owner = locks.owner();
    // Once without loss: with the scripts loaded, the next reply is the script's.
    lock.acquire_as(&owner)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let mut guards = Vec::new();
    for depth in 1..=2 {
        let guard = losing_reply(&proxy, lock.try_acquire_as(&owner))
            .await
            .unwrap();
        guards.push(guard.expect("it is free or held by this owner"));
        assert_eq!(lock.hold_count(&owner).await.unwrap(), depth);
    }
    for remaining_holds in [1, 0] {
        losing_reply(&proxy, guards.pop().unwrap().release())
            .await
            .unwrap();
        assert_eq!(lock.hold_count(&owner).await.unwrap(), remaining_holds);
    }
    nothing_left(&server, &[&locks]).await;
}

async fn a_lost_lock_reports_the_reason<K: LockKind>(lock: fn(&Locks) -> Lock<K>) {
    let (server, mut raw, [locks]) = start(LEASE).await;
    let lock = lock(&locks);
    let owner = locks.owner();
    let guard = lock.acquire_as(&owner).await.unwrap();
    let _: () = raw.del(NAME).await.unwrap();
    assert_eq!(
        soon("the loss is detected", guard.lost()).await,
        LostReason::Expired
    );
    assert_eq!(guard.release().await, Err(Error::Lost(LostReason::Expired)));

    let guard = lock.acquire_as(&owner).await.unwrap();
    hold_as_another_owner(&mut raw, NAME).await;
    assert_eq!(
        soon("the loss is detected", guard.lost()).await,
        LostReason::Taken
    );
    drop(guard);
    assert!(lock.try_acquire_as(&owner).await.unwrap().is_none());
    let _: () = raw.del(NAME).await.unwrap();

    // Lost, and not yet detected by its guard.
    let not_renewed = lock.clone().without_renewal(Duration::from_secs(60));
    let guard = not_renewed.acquire_as(&owner).await.unwrap();
    assert!(lock.force_unlock().await.unwrap());
    assert!(!lock.force_unlock().await.unwrap());
    assert_eq!(guard.release().await, Err(Error::Lost(LostReason::Expired)));
    let outer = not_renewed.acquire_as(&owner).await.unwrap();
    assert!(lock.force_unlock().await.unwrap());
    let lost = outer.lost();
    let inner = lock.acquire_as(&owner).await.unwrap();
    assert_eq!(
        soon("re-entry detects the loss", lost).await,
        LostReason::Expired
    );
    assert_eq!(lock.hold_count(&owner).await.unwrap(), 1);
    assert!(outer.release().await.is_err());
    inner.release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}

/// The server loses all data, and the owner acquires the lock again. The renewals then keep everything that the new hold needs
/// on the server.
async fn a_lock_taken_again_after_a_loss_of_data_is_renewed<K: LockKind>(
    lock: fn(&Locks) -> Lock<K>,
) {
    let (server, mut raw, [locks]) = start(LEASE).await;
    let lock = lock(&locks);
    let owner = locks.owner();
    let lost = [
        lock.acquire_as(&owner).await.unwrap(),
        lock.acquire_as(&owner).await.unwrap(),
    ];
    let _: () = query(&mut raw, "FLUSHALL", &[]).await;
    for guard in &lost {
        assert_eq!(
            soon("the loss is detected", guard.lost()).await,
            LostReason::Expired
        );
        assert_eq!(guard.valid_for(), Duration::ZERO);
    }
    let again = lock.acquire_as(&owner).await.unwrap();
    drop(lost);
    // Seven thirds of the lease.
    for _ in 0..7 {
        renewed(|| again.valid_for()).await;
        assert_eq!(lock.hold_count(&owner).await.unwrap(), 1);
        assert!(lock.is_locked().await.unwrap());
        assert!(
            lock.remaining()
                .await
                .unwrap()
                .is_some_and(|remaining_lease| remaining_lease <= LEASE)
        );
    }
    again.release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}

async fn scripts_are_reloaded_after_a_flush<K: LockKind>(lock: fn(&Locks) -> Lock<K>) {
    let (_server, mut raw, [locks]) = start(LEASE).await;
    let lock = lock(&locks);
    let owner = locks.owner();
    let mut flush = async || {
        let _: () = query(&mut raw, "SCRIPT", &["FLUSH", "SYNC"]).await;
    };
    flush().await;
    let guard = lock.try_acquire_as(&owner).await.unwrap().unwrap();
    flush().await;
    // The renewal script too.
    renewed(|| guard.valid_for()).await;
    assert_eq!(lock.hold_count(&owner).await.unwrap(), 1);
    flush().await;
    guard.release().await.unwrap();
    flush().await;
    assert!(!lock.force_unlock().await.unwrap());
}

async fn a_key_of_another_type_is_rejected_and_kept<K: LockKind>(lock: fn(&Locks) -> Lock<K>) {
    let (_server, mut raw, [locks]) = start(LEASE).await;
    let _: () = raw.set(NAME, "text").await.unwrap();
    fails_as!(lock(&locks).try_acquire().await, Rejected);
    let keys: Vec<String> = query(&mut raw, "KEYS", &["*"]).await;
    assert_eq!(keys, [NAME]);
    assert_eq!(raw.get::<_, String>(NAME).await.unwrap(), "text");
}

/// Makes each of these functions a test of each kind of lock. The lock's name is [`NAME`].
macro_rules! all_kinds {
    ($($test:ident)+) => {
        all_kinds! { [$($test)+]
            reentrant: |locks| locks.lock(NAME);
            fenced: |locks| locks.fenced(NAME);
            fair: |locks| locks.fair(NAME);
            read: |locks| locks.read_write(NAME).read().clone();
            write: |locks| locks.read_write(NAME).write().clone();
        }
    };
    ($tests:tt $($kind:ident: $make:expr;)+) => {
        $(mod $kind {
            use super::*;
            all_kinds!(@ $make; $tests);
        })+
    };
    (@ $make:expr; [$($test:ident)+]) => {
        $(#[tokio::test]
        async fn $test() {
            super::$test($make).await;
        })+
    };
}
pub(super) use all_kinds;

all_kinds! {
    guards_of_one_owner_are_released_in_any_order
    re_entry_from_many_tasks_counts_each_acquire
    re_entry_never_shortens_a_lease
    a_renewal_never_shortens_a_lease
    a_fixed_lease_expires
    a_command_with_a_lost_reply_counts_once
    a_lost_lock_reports_the_reason
    a_lock_taken_again_after_a_loss_of_data_is_renewed
    scripts_are_reloaded_after_a_flush
    a_key_of_another_type_is_rejected_and_kept
}

#[tokio::test]
async fn one_owner_cannot_hold_a_name_as_two_kinds() {
    let (server, mut raw, [locks]) = start(LEASE).await;
    let owner = locks.owner();
    let guard = locks.lock(NAME).acquire_as(&owner).await.unwrap();
    fails_as!(locks.fair(NAME).try_acquire_as(&owner).await, OtherKind);
    fails_as!(locks.fenced(NAME).acquire_as(&owner).await, OtherKind);
    fails_as!(
        locks.read_write(NAME).read().try_acquire_as(&owner).await,
        OtherKind
    );
    // Every kind refuses other owners, and no try adds a field to the hash of another kind.
    let other_owner = locks.owner();
    assert!(
        locks
            .fair(NAME)
            .try_acquire_as(&other_owner)
            .await
            .unwrap()
            .is_none()
    );
    assert!(
        locks
            .fenced(NAME)
            .try_acquire_as(&other_owner)
            .await
            .unwrap()
            .is_none()
    );
    let both = locks.read_write(NAME);
    assert!(
        both.read()
            .try_acquire_as(&other_owner)
            .await
            .unwrap()
            .is_none()
    );
    assert!(
        both.write()
            .try_acquire_as(&other_owner)
            .await
            .unwrap()
            .is_none()
    );
    let fields: Vec<String> = raw.hkeys(NAME).await.unwrap();
    assert_eq!(fields, [owner.to_string()]);
    guard.release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}

/// All keys of a lock and all its channels have to be in one slot, whichever slot it is.
#[tokio::test]
async fn every_kind_is_acquired_awaited_and_released_on_a_cluster() {
    async fn acquire_await_and_release<K: LockKind>(
        cluster: &RedisCluster,
        lock: impl Fn(&Locks) -> Lock<K>,
    ) {
        let server = || Server::cluster(cluster.urls()).unwrap();
        let config = LockConfig::default().with_lease(TIMEOUT * 6);
        let holder_locks = connected(server(), config.clone()).await.unwrap();
        let waiter_locks = connected(server(), config).await.unwrap();
        let owner = holder_locks.owner();
        let guard = lock(&holder_locks).acquire_as(&owner).await.unwrap();
        let again = lock(&holder_locks).acquire_as(&owner).await.unwrap();
        let waiting = wait_for(&lock(&waiter_locks));
        if K::KIND.to_string() != "read" {
            eventually("it waits", async || waiter_locks.usage().channels == 1).await;
            assert!(!waiting.is_finished(), "it acquired a held lock");
        }
        again.release().await.unwrap();
        guard.release().await.unwrap();
        let next = soon("it acquires the lock, not by a timer", waiting)
            .await
            .unwrap();
        next.release().await.unwrap();
        let held = lock(&holder_locks).acquire_as(&owner).await.unwrap();
        assert!(lock(&holder_locks).is_locked().await.unwrap());
        assert!(lock(&holder_locks).force_unlock().await.unwrap());
        drop(held);
        eventually("nothing is left", async || {
            [&holder_locks, &waiter_locks]
                .iter()
                .all(|locks| locks.usage() == LockUsage::default())
        })
        .await;
    }
    let cluster = RedisCluster::start().await;
    for name in ["a", "b", "c", "d", "x:{7}"] {
        acquire_await_and_release(&cluster, |locks| locks.lock(name)).await;
        acquire_await_and_release(&cluster, |locks| locks.fenced(name)).await;
        acquire_await_and_release(&cluster, |locks| locks.fair(name)).await;
        acquire_await_and_release(&cluster, |locks| locks.read_write(name).read().clone()).await;
        acquire_await_and_release(&cluster, |locks| locks.read_write(name).write().clone()).await;
    }
    // A multi-lock of names whose slots are on several nodes.
    let locks = connected(
        Server::cluster(cluster.urls()).unwrap(),
        LockConfig::default(),
    );
    let locks = locks.await.unwrap();
    let guard = locks.multi(["a", "b", "c", "d"]).acquire().await.unwrap();
    assert!(
        locks
            .multi(["d", "a"])
            .try_acquire()
            .await
            .unwrap()
            .is_none()
    );
    guard.release().await.unwrap();
    let guard = locks.multi(["d", "a"]).try_acquire().await.unwrap();
    guard.expect("they are free").release().await.unwrap();
}
