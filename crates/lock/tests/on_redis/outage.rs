//! Outages and shutdown: Redis paused, killed or restarted, runtimes that end. Every call ends within
//! its time limit, with an error that tells whether its outcome is known.

use std::time::{Duration, Instant};

use redisson_lock::{Error, LockConfig, Locks};

use super::{LEASE, eventually, nothing_left, start};
use testkit::redis_server::RedisServer;

const NAME: &str = "lock:order:1";

/// Command timeout of 1 s, a reconnect, and a margin for a busy machine.
const PROMPT: Duration = Duration::from_secs(4);

#[tokio::test]
async fn calls_end_at_their_limit_while_redis_is_paused() {
    // With so long a lease, only the clean-up can remove a key in time.
    let (server, _, [locks]) = start(Duration::from_secs(60)).await;
    let lock = locks.lock(NAME);
    let setnx = locks.setnx("lock:setnx:1", Duration::from_secs(60));
    // With the scripts loaded, one message acquires the lock.
    lock.acquire().await.unwrap().release().await.unwrap();
    server.pause();

    let limit = Duration::from_millis(300);
    let started = Instant::now();
    fails_as!(lock.acquire_within(limit).await, Unavailable);
    let took = started.elapsed();
    assert!(
        took >= limit && took < limit + Duration::from_millis(700),
        "{took:?}"
    );

    let owner = locks.owner();
    let now = Instant::now();
    tokio::join!(
        async { fails_as!(lock.try_acquire_as(&owner).await, Unavailable) },
        async { fails_as!(lock.try_acquire().await, Unavailable) },
        async { fails_as!(setnx.try_acquire().await, Unavailable) },
        async { fails_as!(lock.remaining().await, Unavailable) },
    );
    assert!(now.elapsed() < PROMPT, "{:?}", now.elapsed());

    // Once resumed the server ran every acquire; all of them are released.
    server.resume();
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn a_release_without_a_reply_has_an_unknown_outcome_and_is_repeated() {
    let (server, _, [locks]) = start(Duration::from_secs(60)).await;
    let guard = locks.lock(NAME).acquire().await.unwrap();
    let setnx = locks.setnx("lock:setnx:1", Duration::from_secs(60));
    let setnx = setnx.try_acquire().await.unwrap().unwrap();
    server.pause();
    let now = Instant::now();
    let second_lock = locks.lock("lock:order:2");
    tokio::join!(
        async { fails_as!(guard.release().await, Unknown) },
        async { fails_as!(setnx.release().await, Unknown) },
        async { fails_as!(second_lock.force_unlock().await, Unknown) },
    );
    assert!(now.elapsed() < PROMPT, "{:?}", now.elapsed());
    server.resume();
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn an_unreachable_redis_fails_calls_at_once_until_it_is_back() {
    let (mut server, _, [locks]) = start(LEASE).await;
    let lock = locks.lock(NAME);
    let guard = lock.acquire().await.unwrap();
    server.kill();

    let started = Instant::now();
    for _ in 0..50 {
        fails_as!(lock.try_acquire().await, Unavailable);
    }
    let config = LockConfig::default();
    fails_as!(
        Locks::connect(server.client(), config.clone()).await,
        Unavailable
    );
    // Without Redis, this connects later.
    let lazy = Locks::lazy(server.client(), config).unwrap();
    assert!(started.elapsed() < PROMPT, "{:?}", started.elapsed());
    let released = guard.release().await.unwrap_err();
    assert!(
        matches!(released, Error::Unavailable { .. } | Error::Unknown { .. }),
        "{released:?}"
    );

    server.restart().await;
    // The first call after the restart works: no stale connection fails it.
    let guard = lock.try_acquire().await.unwrap().unwrap();
    guard.release().await.unwrap();
    lazy.lock(NAME)
        .try_acquire()
        .await
        .unwrap()
        .expect("it is free")
        .release()
        .await
        .unwrap();
    nothing_left(&server, &[&locks, &lazy]).await;
}

#[tokio::test]
async fn an_idle_connection_closed_by_the_server_causes_no_error() {
    let (server, mut raw, [locks]) = start(LEASE).await;
    let lock = locks.lock(NAME);
    let setnx = locks.setnx("lock:setnx:1", Duration::from_secs(60));
    for _ in 0..5 {
        let _: i64 = super::query(
            &mut raw,
            "CLIENT",
            &["KILL", "TYPE", "normal", "SKIPME", "yes"],
        )
        .await;
        let guard = lock.try_acquire().await.unwrap().unwrap();
        let _: i64 = super::query(
            &mut raw,
            "CLIENT",
            &["KILL", "TYPE", "normal", "SKIPME", "yes"],
        )
        .await;
        let held = setnx.try_acquire().await.unwrap().unwrap();
        guard.release().await.unwrap();
        held.release().await.unwrap();
    }
    nothing_left(&server, &[&locks]).await;
}

#[test]
fn a_guard_dropped_outside_a_runtime_releases_the_lock() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let (server, locks, guards) = runtime.block_on(async {
        let (server, _, [locks]) = start(LEASE).await;
        let guard = locks.lock(NAME).acquire().await.unwrap();
        let setnx = locks.setnx("lock:setnx:1", Duration::from_secs(60));
        let setnx = setnx.try_acquire().await.unwrap().unwrap();
        (server, locks, (guard, setnx))
    });
    std::thread::spawn(move || drop(guards)).join().unwrap();
    runtime.block_on(nothing_left(&server, &[&locks]));
}

/// As with a `static` that tests share, each of which has a runtime of its own.
#[test]
fn locks_that_outlive_their_runtime_go_on_with_the_next() {
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let first = runtime();
    let (server, locks) = first.block_on(async {
        let (server, _, [locks]) = start(LEASE).await;
        (server, locks)
    });
    let setnx = locks.setnx("lock:setnx:1", Duration::from_secs(60));
    let held = first.block_on(async {
        let lock = locks.lock("lock:order:2").acquire().await.unwrap();
        (lock, setnx.try_acquire().await.unwrap().unwrap())
    });
    drop(first);
    runtime().block_on(async {
        let lock = locks.lock(NAME);
        let guard = lock.acquire().await.unwrap();
        super::renewed(|| guard.valid_for()).await;
        let token = guard.token();
        assert!(lock.force_unlock().await.unwrap());
        super::soon("the token is cancelled", token.cancelled()).await;
        drop((guard, held));
        nothing_left(&server, &[&locks]).await;
    });
    // A guard that is dropped starts the background tasks again, too.
    let third = runtime();
    let guard = third.block_on(locks.lock(NAME).acquire()).unwrap();
    drop(third);
    runtime().block_on(async {
        drop(guard);
        nothing_left(&server, &[&locks]).await;
    });
}

#[tokio::test]
async fn a_guard_outlives_its_locks_handle() {
    let server = RedisServer::start().await;
    let config = LockConfig::default().with_lease(LEASE);
    // Not by `connected`, which keeps a handle.
    let locks = Locks::connect(server.client(), config).await.unwrap();
    let guard = locks.lock(NAME).acquire().await.unwrap();
    drop(locks);
    // The watchdog goes on, and dropping the guard releases the lock.
    super::renewed(|| guard.valid_for()).await;
    super::renewed(|| guard.valid_for()).await;
    drop(guard);
    nothing_left(&server, &[]).await;
    // With the last guard the background tasks end, and with them the connections.
    let mut conn = server.conn().await;
    eventually("the process's connections are closed", async || {
        let list: String = super::query(&mut conn, "CLIENT", &["LIST"]).await;
        list.lines().count() == 1
    })
    .await;
}

#[tokio::test]
async fn shutdown_finishes_pending_releases_and_rejects_new_calls() {
    let (_server, _, [locks]) = start(LEASE).await;
    let lock = locks.lock(NAME);
    let second_lock = locks.lock("lock:order:2");
    let held = lock.acquire().await.unwrap();
    for _ in 0..20 {
        drop(second_lock.acquire().await.unwrap());
    }
    locks.shutdown().await;
    assert!(!second_lock.is_locked().await.unwrap());
    let refused = second_lock.try_acquire().await.map(drop);
    assert_eq!(refused, Err(Error::Closed));
    let refused = locks
        .setnx("lock:setnx:1", super::LEASE)
        .try_acquire()
        .await
        .map(drop);
    assert_eq!(refused, Err(Error::Closed));
    // A live guard can still be released, but is no longer renewed.
    held.release().await.unwrap();
    assert!(!lock.is_locked().await.unwrap());
    locks.shutdown().await;
}
