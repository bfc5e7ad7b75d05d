//! A cap on the time for which a lock is held: the watchdog does not renew it beyond.

use std::time::{Duration, Instant};

use redis::AsyncCommands;
use redisson_lock::kind::LockKind;
use redisson_lock::{Error, Lock, LockConfig, Locks, LostReason, Majority};

use super::{LEASE, eventually, nothing_left, soon};
use crate::support::redis_server::RedisServer;

const CAP: Duration = Duration::from_millis(2_500);

async fn capped(server: &RedisServer, lease: Duration, cap: Duration) -> Locks {
    let config = LockConfig::default().with_lease(lease).with_max_hold(cap);
    Locks::connect(server.client(), config).await.unwrap()
}

/// Holds the lock until it is lost, re-entering it meanwhile.
async fn stuck<K: LockKind>(server: &RedisServer, locks: &Locks, lock: Lock<K>) {
    let mut raw = server.conn().await;
    let owner = locks.owner();
    let began = Instant::now();
    let guard = lock.acquire(&owner).await.unwrap();
    let acquired = Instant::now();
    let mut longest = Duration::ZERO;
    let lost = guard.lost();
    let mut lost = std::pin::pin!(lost);
    let reason = loop {
        tokio::select! {
            reason = &mut lost => break reason,
            () = tokio::time::sleep(Duration::from_millis(50)) => {}
        }
        let valid = guard.valid_for();
        longest = longest.max(acquired.elapsed() + valid);
        assert!(began.elapsed() < CAP * 4, "it is still held");
        // Not at the end: after the loss it would be a new hold.
        if began.elapsed() < CAP - LEASE
            && let Some(again) = lock.try_acquire(&owner).await.unwrap()
        {
            again.release().await.unwrap();
        }
    };
    let took = began.elapsed();
    println!("{}: lost after {took:?}", guard.name());
    assert_eq!(reason, LostReason::MaxHold);
    assert!(took >= CAP - Duration::from_millis(50), "lost after {took:?}");
    // `valid_for` is read a little after the clock.
    assert!(longest <= CAP + Duration::from_millis(100), "valid for {longest:?} in all");
    // On the server it ends at the same time.
    eventually("the key expires", async || !raw.exists::<_, bool>(guard.name()).await.unwrap())
        .await;
    let gone = began.elapsed();
    assert!(gone < CAP + LEASE / 2, "the key was there for {gone:?}");
    assert_eq!(guard.release().await, Err(Error::Lost(LostReason::MaxHold)));
    // A new hold begins anew.
    let again = lock.acquire(&owner).await.unwrap();
    assert!(again.valid_for() > LEASE / 3);
    again.release().await.unwrap();
}

#[tokio::test]
async fn a_stuck_holder_loses_its_lock_at_the_cap() {
    let server = RedisServer::start().await;
    let locks = &capped(&server, LEASE, CAP).await;
    let (one, two) = (locks.read_write("r").unwrap(), locks.read_write("w").unwrap());
    tokio::join!(
        stuck(&server, locks, locks.reentrant("reentrant").unwrap()),
        stuck(&server, locks, locks.fair("fair").unwrap()),
        stuck(&server, locks, one.read().clone()),
        stuck(&server, locks, two.write().clone()),
    );
    let stats = locks.stats();
    let lost: u64 = stats.iter().flat_map(|stats| &stats.losses).map(|(_, count)| count).sum();
    let capped = stats.iter().flat_map(|stats| &stats.losses);
    let capped: u64 = capped.filter(|(reason, _)| *reason == "max_hold").map(|(_, n)| n).sum();
    assert_eq!((lost, capped), (4, 4));
    nothing_left(&server, &[locks]).await;
}

#[tokio::test]
async fn leases_are_cut_to_the_cap() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let cap = Duration::from_millis(600);
    let locks = capped(&server, Duration::from_secs(30), cap).await;
    let renewed = locks.reentrant("renewed").unwrap();
    let fixed = locks.reentrant("fixed").unwrap().with_lease(Duration::from_secs(60));
    for lock in [renewed, fixed] {
        let guard = lock.acquire(&locks.owner()).await.unwrap();
        let left: i64 = raw.pttl(guard.name()).await.unwrap();
        assert!(left <= 601, "{left} ms");
        assert!(guard.valid_for() <= cap);
        assert_eq!(soon("it is lost", guard.lost()).await, LostReason::MaxHold);
    }
    nothing_left(&server, &[&locks]).await;
}

/// Also when servers are acquired anew meanwhile, and what is acquired anew does not outlive it.
#[tokio::test]
async fn a_majority_is_lost_at_the_cap() {
    // Long enough to acquire three servers anew on a busy machine.
    const LEASE: Duration = Duration::from_secs(2);
    const CAP: Duration = Duration::from_secs(8);
    let mut servers = Vec::new();
    let mut locks = Vec::new();
    for _ in 0..3 {
        let server = RedisServer::start().await;
        locks.push(capped(&server, LEASE, CAP).await);
        servers.push(server);
    }
    let majority = Majority::new(&locks, "lock").unwrap();
    let began = Instant::now();
    let guard = majority.try_acquire(&majority.owner()).await.unwrap().unwrap();
    for server in &servers {
        let mut raw = server.conn().await;
        let _: () = raw.del("lock").await.unwrap();
        eventually("it is acquired anew", async || raw.exists("lock").await.unwrap()).await;
        eventually("all are held", async || guard.held() == 3).await;
    }
    assert!(began.elapsed() < CAP, "the machine is too slow");
    let reason = soon("it is lost", guard.lost()).await;
    let took = began.elapsed();
    assert!(took >= CAP - Duration::from_millis(100) && took < CAP + LEASE, "lost after {took:?}");
    assert_eq!(reason, LostReason::MaxHold);
    for server in &servers {
        let mut raw = server.conn().await;
        eventually("the key expires", async || !raw.exists::<_, bool>("lock").await.unwrap()).await;
    }
    assert!(began.elapsed() < CAP + LEASE * 2, "after {:?}", began.elapsed());
    assert_eq!(guard.release().await, Err(Error::Lost(LostReason::MaxHold)));
}
