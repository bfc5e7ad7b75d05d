//! A cap on the time for which a lock is held: the watchdog does not renew it beyond.

use std::time::{Duration, Instant};

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use redisson_lock::kind::LockKind;
use redisson_lock::{Error, Lock, LockConfig, Locks, LostReason, Majority};

use super::majority::{acquire_on_all, process_with, servers};
use super::{eventually, nothing_left, query, soon};
use testkit::redis_server::RedisServer;

/// Three renewals before the cap, and long enough that a busy machine does not lose the lock by accident.
const LEASE: Duration = Duration::from_secs(3);
const CAP: Duration = Duration::from_secs(5);

async fn capped(server: &RedisServer, lease: Duration, cap: Duration) -> Locks {
    let config = LockConfig::default().with_lease(lease).with_max_hold(cap);
    Locks::connect(server.client(), config).await.unwrap()
}

/// When the key ends, and the time now, by the server's clock in ms; without the key both are now.
async fn end_on(raw: &mut MultiplexedConnection, key: &str) -> (i64, i64) {
    const END: &str = "local t = redis.call('TIME')
        local now = t[1] * 1000 + math.floor(t[2] / 1000)
        return {now + math.max(0, redis.call('PTTL', KEYS[1])), now}";
    query(raw, "EVAL", &[END, "1", key]).await
}

/// The cap, and how long a renewal may be on its way: on the server a lease begins when it arrives.
fn longest_on_server(lease: Duration, cap: Duration) -> i64 {
    i64::try_from((cap + lease / 3).as_millis()).unwrap()
}

/// Looks on until the lock is lost; returns why, and the latest end of its key. Calls `meanwhile` now and then.
async fn until_lost(
    raw: &mut MultiplexedConnection,
    key: &str,
    lost: impl Future<Output = LostReason>,
    mut meanwhile: impl AsyncFnMut(),
) -> (LostReason, i64) {
    let mut lost = std::pin::pin!(lost);
    let mut last = 0;
    loop {
        tokio::select! {
            reason = &mut lost => return (reason, last),
            () = tokio::time::sleep(Duration::from_millis(50)) => {}
        }
        last = last.max(end_on(raw, key).await.0);
        meanwhile().await;
    }
}

/// Holds the lock until it is lost, re-entering it meanwhile.
async fn stuck<K: LockKind>(server: &RedisServer, locks: &Locks, lock: Lock<K>) {
    let mut raw = server.conn().await;
    let owner = locks.owner();
    let began = Instant::now();
    let guard = lock.acquire_as(&owner).await.unwrap();
    let acquired = Instant::now();
    let (_, acquired_on_server) = end_on(&mut raw, guard.name()).await;
    let lost = until_lost(&mut raw, guard.name(), guard.lost(), async || {
        let held = acquired.elapsed();
        let valid = guard.valid_for();
        assert!(valid.is_zero() || held + valid <= CAP, "after {held:?} valid for {valid:?}");
        // Not at the end: after the loss it would be a new hold.
        if held < CAP - LEASE
            && let Some(again) = lock.try_acquire_as(&owner).await.unwrap()
        {
            again.release().await.unwrap();
        }
    });
    let (reason, last) = soon("it is lost", lost).await;
    let took = began.elapsed();
    println!("{}: lost after {took:?}", guard.name());
    assert_eq!(reason, LostReason::MaxHold);
    assert!(took >= CAP - Duration::from_millis(50), "lost after {took:?}");
    // On the server it ends at the same time.
    let longest = last - acquired_on_server;
    assert!(longest <= longest_on_server(LEASE, CAP), "{longest} ms on the server");
    eventually("the key expires", async || !raw.exists::<_, bool>(guard.name()).await.unwrap())
        .await;
    assert_eq!(guard.release().await, Err(Error::Lost(LostReason::MaxHold)));
    // A new hold begins anew.
    let again = lock.acquire_as(&owner).await.unwrap();
    assert!(again.valid_for() > Duration::ZERO);
    again.release().await.unwrap();
}

#[tokio::test]
async fn a_stuck_holder_loses_its_lock_at_the_cap() {
    let server = RedisServer::start().await;
    let locks = &capped(&server, LEASE, CAP).await;
    let (one, two) = (locks.read_write("r"), locks.read_write("w"));
    tokio::join!(
        stuck(&server, locks, locks.lock("reentrant")),
        stuck(&server, locks, locks.fair("fair")),
        stuck(&server, locks, one.read().clone()),
        stuck(&server, locks, two.write().clone()),
    );
    let stats = locks.stats();
    let lost: u64 = stats.iter().map(|stats| stats.lost.total()).sum();
    let capped: u64 = stats.iter().map(|stats| stats.lost.max_hold).sum();
    assert_eq!((lost, capped), (4, 4));
    nothing_left(&server, &[locks]).await;
}

#[tokio::test]
async fn leases_are_cut_to_the_cap() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let cap = Duration::from_millis(600);
    let locks = capped(&server, Duration::from_secs(30), cap).await;
    let renewed = locks.lock("renewed");
    let fixed = locks.lock("fixed").without_renewal(Duration::from_secs(60));
    for lock in [renewed, fixed] {
        let guard = lock.acquire().await.unwrap();
        let left: i64 = raw.pttl(guard.name()).await.unwrap();
        assert!(left <= 601, "{left} ms");
        assert!(guard.valid_for() <= cap);
        assert_eq!(soon("it is lost", guard.lost()).await, LostReason::MaxHold);
    }
    nothing_left(&server, &[&locks]).await;
}

/// Also when a server is acquired anew meanwhile, and what is acquired anew does not outlive it.
#[tokio::test]
async fn a_majority_is_lost_at_the_cap() {
    const CAP: Duration = Duration::from_secs(8);
    let servers = servers::<3>().await;
    let config = LockConfig::default().with_lease(LEASE).with_max_hold(CAP);
    let locks = process_with(&servers, config);
    let majority = Majority::new(&locks).unwrap().lock("lock");
    let began = Instant::now();
    let guard = acquire_on_all(&majority, 3).await;
    let mut raw = servers[0].conn().await;
    let (_, acquired_on_server) = end_on(&mut raw, "lock").await;
    let _: () = raw.del("lock").await.unwrap();
    eventually("it is acquired anew", async || raw.exists("lock").await.unwrap()).await;
    let lost = until_lost(&mut raw, "lock", guard.lost(), async || {});
    let (reason, last) = soon("it is lost", lost).await;
    assert_eq!(reason, LostReason::MaxHold);
    let took = began.elapsed();
    assert!(took >= CAP - Duration::from_millis(100), "lost after {took:?}");
    let longest = last - acquired_on_server;
    assert!(longest <= longest_on_server(LEASE, CAP), "{longest} ms on the server");
    for server in &servers {
        let mut raw = server.conn().await;
        eventually("the key expires", async || !raw.exists::<_, bool>("lock").await.unwrap()).await;
    }
    assert_eq!(guard.release().await, Err(Error::Lost(LostReason::MaxHold)));
}
