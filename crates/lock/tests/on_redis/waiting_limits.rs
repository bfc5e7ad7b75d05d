//! What ends a wait, and what does not: its own limit, a lost reply, an outage, a shutdown.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::AsyncCommands;
use redisson_lock::{Error, LockConfig, Locks};

use super::fair::queued;
use super::{
    LONG_LEASE, TIMEOUT, eventually, locks, nothing_left, query, soon, start, start_behind_proxy,
    start_with, stats_of, wait_for,
};
use testkit::proxy::Mode;

const NAME: &str = "lock:order:1";
const QUEUE: &str = "redisson_lock_queue:{lock:order:1}";
const LIMIT: Duration = Duration::from_millis(300);

/// How many acquires of a kind timed out, and how many failed.
fn timed_out_and_failed(locks: &Locks, kind: &str) -> (u64, u64) {
    let stats = stats_of(locks, kind);
    (stats.timed_out, stats.failed)
}

#[tokio::test]
async fn a_limit_reached_during_a_try_says_that_redis_did_not_answer() {
    // A try would wait for its answer for this long.
    let config = LockConfig::default().with_command_timeout(TIMEOUT * 3);
    let (server, _, [locks]) = start_with(config).await;
    server.pause();
    let started = Instant::now();
    for (what, limited) in [
        (
            "lock",
            locks.lock(NAME).acquire_within(LIMIT).await.map(drop),
        ),
        (
            "fair lock",
            locks.fair("fair").acquire_within(LIMIT).await.map(drop),
        ),
        (
            "multi lock",
            locks
                .multi(["a", "b"])
                .acquire_within(LIMIT)
                .await
                .map(drop),
        ),
    ] {
        assert!(
            matches!(limited, Err(Error::Unavailable { .. })),
            "{what}: {limited:?}"
        );
    }
    assert!(started.elapsed() < TIMEOUT, "{:?}", started.elapsed());
    for kind in ["reentrant", "fair"] {
        assert_eq!(timed_out_and_failed(&locks, kind), (0, 1), "{kind}");
    }
    server.resume();
}

/// The server cannot be subscribed to. The limit is reached, and until then the waiter polls.
#[tokio::test]
async fn a_limit_reached_during_a_subscription_is_a_time_out() {
    let (server, proxy, waiter_locks) = start_behind_proxy(LockConfig::default()).await;
    let holder_locks = locks(&server, LONG_LEASE).await;
    let guard = holder_locks.lock(NAME).acquire().await.unwrap();
    proxy.set(Mode::LoseRequest("SUBSCRIBE"));
    let lock = waiter_locks.lock(NAME);
    for limit in [LIMIT, Duration::from_secs(3)] {
        let got = lock
            .acquire_within(limit)
            .await
            .map(|guard| guard.is_some());
        assert_eq!(got, Ok(false), "{limit:?}");
    }
    assert_eq!(timed_out_and_failed(&waiter_locks, "reentrant"), (2, 0));
    let waiting = wait_for(&lock);
    eventually("it waits", async || waiter_locks.usage().channels == 1).await;
    guard.release().await.unwrap();
    let guard = soon("it acquires the lock by polling", waiting)
        .await
        .unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_shutdown_ends_every_wait_at_once() {
    let (_server, mut raw, [holder_locks, waiter_locks]) = start(LONG_LEASE).await;
    let _held = holder_locks.lock(NAME).acquire().await.unwrap();
    let _queued = holder_locks.fair("fair").acquire().await.unwrap();
    let lock = waiter_locks.lock(NAME);
    let fair = waiter_locks.fair("fair");
    let multi = waiter_locks.multi(["free", NAME]);
    let waits = [
        tokio::spawn(async move { lock.acquire().await.err() }),
        tokio::spawn(async move { fair.acquire().await.err() }),
        tokio::spawn(async move { multi.acquire().await.err() }),
    ];
    eventually("all wait", async || {
        let channels: Vec<String> = query(&mut raw, "PUBSUB", &["CHANNELS"]).await;
        channels.len() == 2 && stats_of(&waiter_locks, "reentrant").waiting_now == 2
    })
    .await;
    soon("the shutdown", waiter_locks.shutdown()).await;
    for wait in waits {
        assert_eq!(soon("it ends", wait).await.unwrap(), Some(Error::Closed));
    }
    // The waiter has left the queue of the fair lock, and the multi lock holds nothing.
    let keys: Vec<String> = query(&mut raw, "KEYS", &["*"]).await;
    let mut expected = [NAME, "fair"];
    expected.sort_unstable();
    let mut keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(keys, expected);
}

/// The lock was granted to a waiter, and the reply never came: the waiter tries again.
#[tokio::test]
async fn a_lost_reply_ends_no_wait_and_costs_no_place() {
    let (server, proxy, proxied_locks) = start_behind_proxy(LockConfig::default()).await;
    let mut raw = server.conn().await;
    let direct_locks = locks(&server, LONG_LEASE).await;
    for granted in [false, true] {
        let _: () = raw.hset(NAME, "another:1", 1).await.unwrap();
        let _: bool = raw.pexpire(NAME, 600_000).await.unwrap();
        let order: Arc<Mutex<Vec<&str>>> = Arc::default();
        let mut waits = Vec::new();
        let mut channels = Vec::new();
        for (count, (locks, waiter)) in [(&proxied_locks, "first"), (&direct_locks, "second")]
            .into_iter()
            .enumerate()
        {
            let lock = locks.fair(NAME);
            let owner = locks.owner();
            let order = order.clone();
            channels.push(format!("redisson_lock__channel:{{{NAME}}}:{owner}"));
            waits.push(tokio::spawn(async move {
                let guard = lock.acquire_as(&owner).await?;
                order.lock().unwrap().push(waiter);
                guard.release().await
            }));
            queued(&mut raw, QUEUE, count + 1).await;
        }
        // The first waiter is woken; its try arrives when nobody listens for the answer any more.
        proxy.set(Mode::HoldRequests("EVALSHA"));
        let _: i64 = raw.publish(&channels[0], "0").await.unwrap();
        eventually("its try is on its way", async || proxy.held() == 1).await;
        proxy.set(Mode::Hang);
        if granted {
            let _: () = raw.del(NAME).await.unwrap();
        }
        proxy.pass_held().await;
        let holder: Vec<String> = raw.hkeys(NAME).await.unwrap();
        assert_eq!(holder != ["another:1"], granted, "{holder:?}");
        proxy.set(Mode::Forward);
        if !granted {
            direct_locks.fair(NAME).force_unlock().await.unwrap();
        }
        for wait in waits {
            let outcome = soon("the wait ends", wait).await.unwrap();
            assert_eq!(outcome, Ok(()), "granted: {granted}");
        }
        assert_eq!(
            *order.lock().unwrap(),
            ["first", "second"],
            "granted: {granted}"
        );
        nothing_left(&server, &[&proxied_locks, &direct_locks]).await;
    }
}

/// Waiters pile up while Redis is down, and all acquire once it is back.
#[tokio::test]
async fn an_outage_ends_no_wait() {
    let (mut server, _, [locks]) = start(LONG_LEASE).await;
    let lock = locks.lock(NAME);
    server.kill();
    let waits: Vec<_> = (0..50)
        .map(|number| {
            let fair = locks.fair("fair");
            let lock = lock.clone();
            tokio::spawn(async move {
                if number % 2 == 0 {
                    lock.acquire().await?.release().await
                } else {
                    fair.acquire().await?.release().await
                }
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    for refused in [
        lock.acquire_within(LIMIT).await.map(drop),
        lock.try_acquire().await.map(drop),
    ] {
        fails_as!(refused, Unavailable);
    }
    server.restart().await;
    for wait in waits {
        assert_eq!(soon("the wait ends", wait).await.unwrap(), Ok(()));
    }
    eventually("no waiter is left", async || locks.usage().channels == 0).await;
}

/// Calls that may wait for ever end at the outage limit, whether the server is paused or down.
#[tokio::test]
async fn the_outage_limit_ends_every_wait() {
    let config = LockConfig::default().with_outage_limit(LIMIT);
    let (mut server, _, [locks]) = start_with(config).await;
    let held = locks.lock(NAME).acquire().await.unwrap();
    let every_wait = async |down: &str| {
        let started = Instant::now();
        let multi = locks.multi(["a", "b"]);
        let outcomes = soon("every wait ends", async {
            tokio::join!(
                async { locks.lock("free").acquire().await.map(drop) },
                async {
                    locks
                        .fair("fair")
                        .acquire_within(TIMEOUT * 3)
                        .await
                        .map(drop)
                },
                async { multi.acquire().await.map(drop) },
            )
        })
        .await;
        for outcome in <[Result<(), Error>; 3]>::from(outcomes) {
            let error = outcome.unwrap_err();
            assert!(
                matches!(error, Error::Unavailable { .. }) && error.is_retryable(),
                "{error:?}"
            );
            assert!(std::error::Error::source(&error).is_some(), "{error:?}");
        }
        assert!(
            started.elapsed() >= LIMIT,
            "{down}: {:?}",
            started.elapsed()
        );
    };
    server.pause();
    every_wait("paused").await;
    server.resume();
    eventually("it answers", async || {
        locks.lock(NAME).is_locked().await.is_ok()
    })
    .await;
    // A refusal is an answer: while the server answers, only the call's own limit ends the wait.
    let limited = locks
        .lock(NAME)
        .acquire_within(LIMIT * 3)
        .await
        .map(|guard| guard.is_some());
    assert_eq!(limited, Ok(false));
    drop(held);
    server.kill();
    every_wait("down").await;
}
