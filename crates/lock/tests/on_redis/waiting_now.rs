//! The gauge of calls that wait now, `LockStats::waiting_now`.

use std::time::Duration;

use redisson_lock::Locks;

use super::{LONG_LEASE, eventually, nothing_left, soon, start, stats_of};

const NAME: &str = "lock:order:1";

fn waiting(locks: &Locks, kind: &str) -> u64 {
    stats_of(locks, kind).waiting_now
}

async fn become_waiting(locks: &Locks, kind: &str, count: u64) {
    eventually(&format!("{count} wait"), async || {
        waiting(locks, kind) == count
    })
    .await;
}

#[tokio::test]
async fn calls_count_while_they_wait_however_they_end() {
    let (server, _, [holder_locks, waiter_locks]) = start(LONG_LEASE).await;
    let held = holder_locks.fair(NAME).acquire().await.unwrap();
    // A call that does not wait does not count, and neither does the holder's own acquire.
    let lock = waiter_locks.fair(NAME);
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert_eq!(
        (
            waiting(&waiter_locks, "fair"),
            waiting(&holder_locks, "fair")
        ),
        (0, 0)
    );

    let waits = |limit: Duration| {
        let lock = lock.clone();
        let owner = waiter_locks.owner();
        tokio::spawn(async move { lock.acquire_within_as(&owner, limit).await.unwrap() })
    };
    let long = Duration::from_secs(60);
    let acquires = waits(long);
    let dropped = waits(long);
    let times_out = waits(long / 30);
    become_waiting(&waiter_locks, "fair", 3).await;
    assert_eq!(
        (
            waiting(&waiter_locks, "reentrant"),
            waiting(&holder_locks, "fair")
        ),
        (0, 0)
    );
    assert!(soon("the limit", times_out).await.unwrap().is_none());
    become_waiting(&waiter_locks, "fair", 2).await;
    dropped.abort();
    become_waiting(&waiter_locks, "fair", 1).await;
    held.release().await.unwrap();
    let guard = soon("it acquires", acquires).await.unwrap().unwrap();
    assert_eq!(waiting(&waiter_locks, "fair"), 0);
    guard.release().await.unwrap();
    nothing_left(&server, &[&holder_locks, &waiter_locks]).await;
}

#[tokio::test]
async fn a_multi_lock_that_waits_counts_once_and_a_shutdown_ends_it() {
    let (_server, _, [holder_locks, waiter_locks]) = start(LONG_LEASE).await;
    let held = holder_locks.multi(["a", "b"]).acquire().await.unwrap();
    let waits = tokio::spawn({
        let waiter_locks = waiter_locks.clone();
        async move { waiter_locks.multi(["a", "b"]).acquire().await.map(drop) }
    });
    become_waiting(&waiter_locks, "reentrant", 1).await;
    waiter_locks.shutdown().await;
    assert!(soon("it ends", waits).await.unwrap().is_err());
    assert_eq!(waiting(&waiter_locks, "reentrant"), 0);
    held.release().await.unwrap();
}
