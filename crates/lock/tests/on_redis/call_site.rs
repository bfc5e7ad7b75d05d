//! Calls that keep a caller's code short: `with`, `extend`, a URL to connect by. And the refusal of an owner that another
//! `Locks` made.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redisson_lock::kind::LockKind;
use redisson_lock::{Error, Lock, LockConfig, Locks, LostReason};

use super::{LEASE, LONG_LEASE, TIMEOUT, query, soon, start};
use testkit::redis_server::RedisServer;

#[tokio::test]
async fn with_runs_the_work_under_the_lock_and_releases_it() {
    let (_server, _, [locks]) = start(LONG_LEASE).await;
    let lock = locks.lock("lock:with");
    let locked_meanwhile = lock.with(async { lock.is_locked().await }).await;
    assert_eq!(locked_meanwhile, Ok(true));
    assert_eq!(lock.is_locked().await, Ok(false), "released");

    let failed = lock
        .with(async { Err::<(), _>(Error::Closed) })
        .await
        .unwrap_err();
    assert_eq!(failed, Error::Closed, "the work's own error");
    assert_eq!(lock.is_locked().await, Ok(false), "released after it");

    let (_server, mut raw, [locks]) = start(LEASE).await;
    let lock = locks.lock("lock:with");
    let lost = soon(
        "the loss ends the work",
        lock.with(async {
            let _: i64 = query(&mut raw, "DEL", &["lock:with"]).await;
            std::future::pending::<()>().await;
            Ok::<_, Error>(())
        }),
    )
    .await;
    assert_eq!(lost, Err(Error::Lost(LostReason::Expired)));
}

/// The lock is lost while the work runs, and nothing notices that before the release.
#[tokio::test]
async fn with_reports_a_loss_that_only_the_release_notices() {
    let (_server, mut raw, [locks]) = start(LONG_LEASE).await;
    let lock = locks.lock("lock:with");
    let lost = lock
        .with(async {
            let _: i64 = query(&mut raw, "DEL", &["lock:with"]).await;
            Ok::<_, Error>(())
        })
        .await;
    assert_eq!(lost, Err(Error::Lost(LostReason::Expired)));
}

#[tokio::test]
async fn a_lease_is_extended_and_never_shortened() {
    let (_server, mut raw, [locks]) = start(LONG_LEASE).await;
    let lock = locks.read_write("lock:extend");
    extends(&mut raw, &locks.lock("reentrant:extend")).await;
    extends(&mut raw, &locks.fair("fair:extend")).await;
    extends(&mut raw, lock.read()).await;
    extends(&mut raw, lock.write()).await;
}

async fn extends<K: LockKind>(raw: &mut MultiplexedConnection, lock: &Lock<K>) {
    let short = lock.clone().without_renewal(TIMEOUT);
    let guard = short.acquire().await.unwrap();
    guard.extend(LONG_LEASE).await.unwrap();
    assert!(guard.valid_for() > TIMEOUT, "{lock:?}");
    guard.extend(Duration::from_millis(1)).await.unwrap();
    assert!(guard.valid_for() > TIMEOUT, "{lock:?}: shortened");
    let remaining_lease = lock.remaining().await.unwrap();
    assert!(
        remaining_lease.is_some_and(|remaining_lease| remaining_lease > TIMEOUT),
        "{lock:?}: {remaining_lease:?}"
    );
    let _: i64 = query(raw, "DEL", &[lock.name()]).await;
    let lost = guard.extend(LONG_LEASE).await;
    assert_eq!(lost, Err(Error::Lost(LostReason::Expired)), "{lock:?}");
    assert!(guard.valid_for().is_zero(), "{lock:?}");
}

#[tokio::test]
async fn a_url_is_enough_to_connect() {
    let server = RedisServer::start().await;
    let config = LockConfig::default();
    let locks = Locks::connect(server.url().as_str(), config.clone())
        .await
        .unwrap();
    assert_eq!(locks.lock("lock:url").is_locked().await, Ok(false));
    fails_as!(Locks::connect("127.0.0.1:6379", config).await, Rejected);
}

/// A second `Locks` would count the owner's holds from one again. Its last release would free the lock,
/// although the first `Locks` still holds it.
#[tokio::test]
async fn an_owner_of_other_locks_acquires_nothing() {
    let (_server, _, [locks, foreign_locks]) = start(LONG_LEASE).await;
    let guard = locks.lock("lock:foreign").acquire().await.unwrap();
    let foreign_lock = foreign_locks.lock("lock:foreign");
    fails_as!(foreign_lock.acquire_as(guard.owner()).await, ForeignOwner);
    fails_as!(
        foreign_lock.try_acquire_as(guard.owner()).await,
        ForeignOwner
    );
    let foreign_multi = foreign_locks.multi(["lock:foreign", "lock:another"]);
    fails_as!(foreign_multi.acquire_as(guard.owner()).await, ForeignOwner);
    fails_as!(
        foreign_multi.try_acquire_as(guard.owner()).await,
        ForeignOwner
    );
    guard.release().await.unwrap();
}
