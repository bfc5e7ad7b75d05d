//! The multi-lock: all locks or none, no deadlock, one validity, nothing left behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::AsyncCommands;
use redisson_lock::{Error, Lost, LostReason, MultiLock};
use tokio::task::JoinSet;

use super::cancellation::{cut_after, cut_everywhere, released_later};
use super::{LONG_LEASE, eventually, locks, nothing_left, query, soon, start};
use testkit::redis_server::RedisServer;

#[tokio::test]
async fn all_locks_are_acquired_or_none() {
    let (server, mut raw, [locks]) = start(LONG_LEASE).await;
    let three = locks.multi(["a", "b", "c", "b"]);
    let owner = locks.owner();
    let other_owner = locks.owner();

    let guard = three
        .try_acquire_as(&owner)
        .await
        .unwrap()
        .expect("all are free");
    for name in ["a", "b", "c"] {
        assert_eq!(
            locks.lock(name).hold_count(&owner).await.unwrap(),
            1,
            "a repeated name is one lock: {name}"
        );
    }
    // Its owner may re-enter one of them; other owners may acquire none.
    let inner = locks
        .lock("b")
        .try_acquire_as(&owner)
        .await
        .unwrap()
        .unwrap();
    assert!(
        locks
            .lock("c")
            .try_acquire_as(&other_owner)
            .await
            .unwrap()
            .is_none()
    );
    guard.release().await.unwrap();

    // With one of them held, none is acquired.
    assert!(three.try_acquire_as(&other_owner).await.unwrap().is_none());
    let keys: Vec<String> = query(&mut raw, "KEYS", &["*"]).await;
    assert_eq!(keys, ["b"]);
    inner.release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}

/// Acquires and releases the lock `rounds` times, and checks that nobody else holds it meanwhile.
fn turns(
    rounds: u32,
    lock: MultiLock,
    held: &Arc<AtomicBool>,
) -> impl Future<Output = ()> + Send + use<> {
    let held = held.clone();
    async move {
        for _ in 0..rounds {
            let guard = lock.acquire().await.unwrap();
            assert!(!held.swap(true, Ordering::SeqCst), "two hold it");
            tokio::task::yield_now().await;
            held.store(false, Ordering::SeqCst);
            guard.release().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opposite_orders_never_deadlock() {
    const ROUNDS: u32 = 40;
    let (server, _, [first_locks, second_locks]) = start(LONG_LEASE).await;
    let held = Arc::default();
    let mut tasks = JoinSet::new();
    for (locks, names) in [
        (&first_locks, ["a", "b"]),
        (&second_locks, ["b", "a"]),
        (&first_locks, ["b", "a"]),
        (&second_locks, ["a", "b"]),
    ] {
        tasks.spawn(turns(ROUNDS, locks.multi(names), &held));
    }
    // One task acquires them one by one, in the reverse of the multi-lock's sorted order.
    tasks.spawn({
        let locks = second_locks.clone();
        let held = held.clone();
        async move {
            for _ in 0..ROUNDS {
                let owner = locks.owner();
                let outer = locks.lock("b").acquire_as(&owner).await.unwrap();
                let inner = locks.lock("a").acquire_as(&owner).await.unwrap();
                assert!(!held.swap(true, Ordering::SeqCst), "two hold both");
                held.store(false, Ordering::SeqCst);
                inner.release().await.unwrap();
                outer.release().await.unwrap();
            }
        }
    });
    while let Some(end) = soon("every task is done", tasks.join_next()).await {
        end.unwrap();
    }
    nothing_left(&server, &[&first_locks, &second_locks]).await;
}

#[tokio::test]
async fn a_waiting_multi_lock_holds_nothing_and_is_woken_by_a_release() {
    let (server, _, [holder_locks, waiter_locks]) = start(LONG_LEASE).await;
    let both = waiter_locks.multi(["a", "b"]);
    let holder = holder_locks.lock("b").acquire().await.unwrap();
    let waiting =
        tokio::spawn(async move { both.acquire().await.unwrap().release().await.unwrap() });
    eventually("it waits", async || waiter_locks.usage().channels == 1).await;
    let a = holder_locks.lock("a");
    eventually("it holds nothing", async || !a.is_locked().await.unwrap()).await;
    holder.release().await.unwrap();
    soon("it is woken", waiting).await.unwrap();
    nothing_left(&server, &[&holder_locks, &waiter_locks]).await;
}

#[tokio::test]
async fn validity_is_that_of_the_lock_acquired_first() {
    let first = RedisServer::start().await;
    let second = RedisServer::start().await;
    let first_locks = locks(&first, LONG_LEASE).await;
    let second_locks = locks(&second, LONG_LEASE).await;
    let lease = Duration::from_secs(20);
    let delay = Duration::from_millis(400);
    let both = MultiLock::new([(&second_locks, "b"), (&first_locks, "a")]).without_renewal(lease);
    // The second answers late, while the lease of the first runs.
    second.pause();
    let owner = first_locks.owner();
    let (guard, ()) = tokio::join!(both.acquire_as(&owner), async {
        tokio::time::sleep(delay).await;
        second.resume();
    });
    let guard = guard.unwrap();
    let valid = guard.valid_for();
    assert!(valid <= lease - delay && valid > lease / 2, "{valid:?}");
    guard.release().await.unwrap();
    nothing_left(&first, &[&first_locks]).await;
    nothing_left(&second, &[&second_locks]).await;
}

#[tokio::test]
async fn it_is_lost_when_any_of_its_locks_is() {
    let renewed_lease = Duration::from_secs(3);
    let (server, mut raw, [locks]) = start(renewed_lease).await;
    let guard = locks.multi(["a", "b", "c"]).acquire().await.unwrap();
    let lost = guard.lost();
    // Renewed past its lease, it is not lost.
    assert!(
        tokio::time::timeout(renewed_lease * 3 / 2, guard.lost())
            .await
            .is_err()
    );
    let _: () = raw.del("b").await.unwrap();
    assert_eq!(
        soon("the loss is detected", lost).await,
        LostReason::Expired
    );
    assert_eq!(guard.valid_for(), Duration::ZERO);
    assert_eq!(guard.release().await, Err(Error::Lost(LostReason::Expired)));
    nothing_left(&server, &[&locks]).await;

    let lease = Duration::from_millis(300);
    let fixed = locks.multi(["a", "b"]).without_renewal(lease);
    let guard = fixed.acquire().await.unwrap();
    assert_eq!(
        soon("the lease ends", guard.lost()).await,
        LostReason::Expired
    );
    drop(guard);

    // Released in time it is never lost, also for a future created before the release.
    let guard = locks.multi(["a", "b"]).acquire().await.unwrap();
    let lost = guard.lost();
    guard.release().await.unwrap();
    assert!(
        tokio::time::timeout(renewed_lease * 3 / 2, lost)
            .await
            .is_err()
    );
    nothing_left(&server, &[&locks]).await;
}

/// Whichever of them it is. The work blocks its thread, so that nothing ends it when its lock is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_outlasts_any_of_its_locks_is_not_said_to_have_been_locked() {
    let lease = Duration::from_secs(3);
    let first = RedisServer::start().await;
    let second = RedisServer::start().await;
    let first_locks = locks(&first, lease).await;
    let second_locks = locks(&second, lease).await;
    let both = MultiLock::new([(&first_locks, "a"), (&second_locks, "b")]);
    let guard = both.acquire().await.unwrap();
    second.pause();
    let ran = guard
        .run(async {
            while !guard.valid_for().is_zero() {
                std::thread::sleep(Duration::from_millis(10));
            }
        })
        .await;
    assert_eq!(ran, Err(Lost(LostReason::Unreachable)));
    assert!(
        first_locks.lock("a").is_locked().await.unwrap(),
        "it is renewed"
    );
    second.resume();
    fails_as!(guard.release().await, Lost);
    nothing_left(&first, &[&first_locks]).await;
    nothing_left(&second, &[&second_locks]).await;
}

#[tokio::test]
async fn an_unavailable_server_leaves_nothing_on_the_others() {
    let first = RedisServer::start().await;
    let mut second = RedisServer::start().await;
    let first_locks = locks(&first, LONG_LEASE).await;
    let second_locks = locks(&second, LONG_LEASE).await;
    let both = MultiLock::new([(&first_locks, "a"), (&second_locks, "b")]);
    second.kill();
    fails_as!(both.try_acquire().await, Unavailable);
    nothing_left(&first, &[&first_locks]).await;
    second.restart().await;
    both.try_acquire()
        .await
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();
}

/// A name is one lock on each server.
#[tokio::test]
async fn the_same_name_on_two_servers_is_two_locks() {
    let first = RedisServer::start().await;
    let second = RedisServer::start().await;
    let first_locks = locks(&first, LONG_LEASE).await;
    let second_locks = locks(&second, LONG_LEASE).await;
    let both = MultiLock::new([
        (&first_locks, "a"),
        (&second_locks, "a"),
        (&first_locks, "a"),
    ]);
    let guard = both.try_acquire().await.unwrap().expect("both are free");
    for locks in [&first_locks, &second_locks] {
        assert!(locks.lock("a").is_locked().await.unwrap());
    }
    guard.release().await.unwrap();
    nothing_left(&first, &[&first_locks]).await;
    nothing_left(&second, &[&second_locks]).await;
}

/// Acquiring what is free, waiting for what another holds, and releasing: each cut everywhere.
#[tokio::test]
async fn a_call_cancelled_at_any_point_leaves_nothing() {
    let (server, _, [waiter_locks, holder_locks]) = start(LONG_LEASE).await;
    let lock = waiter_locks.multi(["a", "b"]);
    for case in 0..3 {
        cut_everywhere(&format!("case {case}"), async |polls| {
            let completed = match case {
                0 => cut_after(polls, lock.try_acquire())
                    .await
                    .map(Result::unwrap)
                    .is_some(),
                1 => {
                    let held = holder_locks.lock("b").acquire().await.unwrap();
                    let releasing = released_later(held.release());
                    let got = cut_after(polls, lock.acquire()).await.map(Result::unwrap);
                    releasing.await.unwrap();
                    got.is_some()
                }
                _ => {
                    let guard = lock.acquire().await.unwrap();
                    cut_after(polls, guard.release())
                        .await
                        .map(Result::unwrap)
                        .is_some()
                }
            };
            nothing_left(&server, &[&waiter_locks, &holder_locks]).await;
            completed
        })
        .await;
    }
}
