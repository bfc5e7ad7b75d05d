//! Renewals, and lost locks: a guard reports that its lock is lost, and the reason.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::AsyncCommands;
use redisson_lock::{Error, Guard, Lost, LostReason};

use super::{LEASE, LONG_LEASE, eventually, locks, nothing_left, renewed, soon, start};
use testkit::redis_server::{RedisServer, Role};

const NAME: &str = "lock:order:1";

#[tokio::test]
async fn a_paused_redis_is_reported_as_unreachable_at_the_deadline() {
    let (server, _, [locks]) = start(LEASE).await;
    let guard = locks.lock(NAME).acquire().await.unwrap();
    server.pause();
    let paused = Instant::now();
    eventually("the deadline", async || {
        let since = paused.elapsed();
        let valid = guard.valid_for();
        assert!(
            valid.is_zero() || since + valid <= LEASE,
            "valid for {valid:?} after {since:?}"
        );
        valid.is_zero()
    })
    .await;
    assert_eq!(
        soon("the loss is detected", guard.lost()).await,
        LostReason::Unreachable
    );
    server.resume();
    // Renewals in flight may extend the lease; the clean-up releases it.
    let mut raw = server.conn().await;
    eventually("the key is gone", async || {
        !raw.exists::<_, bool>(NAME).await.unwrap()
    })
    .await;
    assert_eq!(locks.usage().watched, 0);
    assert_eq!(
        guard.release().await,
        Err(Error::Lost(LostReason::Unreachable))
    );
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn a_short_outage_loses_no_lock() {
    let mut server = RedisServer::start_as(Role::Durable).await;
    let locks = locks(&server, Duration::from_secs(6)).await;
    let owner = locks.owner();
    let lock = locks.lock(NAME);
    let guard = lock.acquire_as(&owner).await.unwrap();
    server.restart().await;
    renewed(|| guard.valid_for()).await;
    assert_eq!(lock.hold_count(&owner).await.unwrap(), 1);
    guard.release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}

/// The deadline has passed here and not on the server, and no task has noticed yet.
#[tokio::test]
async fn a_release_after_the_deadline_says_lost_and_gives_the_key_back() {
    let (server, mut raw, [locks]) = start(LONG_LEASE).await;
    let lock = locks.lock(NAME).without_renewal(Duration::from_secs(2));
    let owner = locks.owner();
    let outer = lock.acquire_as(&owner).await.unwrap();
    let inner = lock.acquire_as(&owner).await.unwrap();
    let _: bool = raw.pexpire(NAME, 60_000).await.unwrap();
    // Blocks the whole runtime.
    while !inner.valid_for().is_zero() {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(inner.release().await, Err(Error::Lost(LostReason::Expired)));
    eventually("the key is given back", async || {
        !raw.exists::<_, bool>(NAME).await.unwrap()
    })
    .await;
    assert_eq!(outer.release().await, Err(Error::Lost(LostReason::Expired)));
    nothing_left(&server, &[&locks]).await;
}

/// Both ways to end the work under a lock that is lost: its future is dropped, or a task watches a token.
#[tokio::test]
async fn work_under_a_lock_ends_when_the_lock_is_lost() {
    let (_server, mut raw, [locks]) = start(LEASE).await;
    let lock = locks.lock(NAME);
    let guard = lock.acquire().await.unwrap();
    assert_eq!(guard.run(async { 7 }).await, Ok(7));
    let failed = guard.run(async { Err::<(), _>("its own") }).await;
    assert_eq!(failed, Ok(Err("its own")));
    let token = guard.token();
    let ended = Arc::new(());
    let work = {
        let alive = ended.clone();
        async move {
            let _alive = alive;
            std::future::pending::<()>().await;
        }
    };
    let (ran, _) = tokio::join!(guard.run(work), async {
        assert!(!token.is_cancelled());
        raw.del::<_, i64>(NAME).await.unwrap()
    });
    assert_eq!(ran, Err(Lost(LostReason::Expired)));
    assert_eq!(Arc::strong_count(&ended), 1, "the work goes on");
    soon("the token is cancelled", token.cancelled()).await;
    // A token of a lock that is lost already, and one after a shutdown, when nothing is renewed.
    assert!(guard.token().is_cancelled());
    let released = lock.acquire().await.unwrap();
    let token = released.token();
    released.release().await.unwrap();
    let guard = lock.acquire().await.unwrap();
    assert!(!token.is_cancelled(), "that hold was not lost");
    let token = guard.token();
    locks.shutdown().await;
    assert!(token.is_cancelled());
}

/// Nothing is renewed meanwhile, on a runtime of one thread, and nothing can end the work.
#[tokio::test]
async fn work_that_blocks_its_thread_past_the_lease_is_not_said_to_have_been_locked() {
    let (_server, _, [locks]) = start(LEASE).await;
    let guard = locks.lock(NAME).acquire().await.unwrap();
    let both = locks.multi(["a", "b"]).acquire().await.unwrap();
    let ran = guard.run(block_past_lease(|| guard.valid_for())).await;
    assert_eq!(ran, Err(Lost(LostReason::Unreachable)));
    let ran = both.run(block_past_lease(|| both.valid_for())).await;
    assert_eq!(ran, Err(Lost(LostReason::Unreachable)));
}

async fn block_past_lease(valid_for: impl Fn() -> Duration) {
    while !valid_for().is_zero() {
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[tokio::test]
async fn a_failing_renewal_does_not_delay_others() {
    let (_server, mut raw, [locks]) = start(LEASE).await;
    let owner = locks.owner();
    let bad = locks.lock("bad").acquire_as(&owner).await.unwrap();
    let mut good = Vec::new();
    for i in 0..50 {
        good.push(
            locks
                .lock(&format!("good:{i}"))
                .acquire_as(&owner)
                .await
                .unwrap(),
        );
    }
    let bad_lost = bad.lost();
    let _: () = raw.set("bad", "of another type").await.unwrap();
    assert_eq!(
        soon("the loss is detected", bad_lost).await,
        LostReason::Unreachable
    );
    renewed(|| good.iter().map(Guard::valid_for).min().unwrap()).await;
    for guard in good {
        assert!(guard.valid_for() > Duration::ZERO);
        guard.release().await.unwrap();
    }
    assert!(bad.release().await.is_err());
}

#[tokio::test]
async fn more_locks_than_one_renewal_batch_all_stay_held() {
    // With the lease of the other tests these would be thousands of renewals a second.
    let (server, _, [locks]) = start(Duration::from_secs(6)).await;
    let owner = locks.owner();
    let mut guards = Vec::new();
    for i in 0..800 {
        guards.push(
            locks
                .lock(&format!("lock:{i}"))
                .acquire_as(&owner)
                .await
                .unwrap(),
        );
    }
    for _ in 0..2 {
        renewed(|| guards.iter().map(Guard::valid_for).min().unwrap()).await;
    }
    let lost = guards
        .iter()
        .filter(|guard| guard.valid_for().is_zero())
        .count();
    assert_eq!((lost, locks.usage().watched), (0, 800));
    drop(guards);
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn extreme_leases_are_accepted() {
    let (server, _, [locks]) = start(LEASE).await;
    let lock = locks.lock("lock:order:1");
    let endless = lock
        .clone()
        .without_renewal(Duration::MAX)
        .acquire()
        .await
        .unwrap();
    endless.release().await.unwrap();
    // It becomes 1 ms, which ends at once; what matters is that the lock becomes free.
    let expired = lock
        .clone()
        .without_renewal(Duration::ZERO)
        .try_acquire()
        .await;
    drop(expired);
    let next = lock.acquire_within(Duration::from_secs(10)).await.unwrap();
    next.expect("the lock is free").release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}
