//! The majority lock on several independent servers: quorum, validity, servers that die, lose their
//! data or hang.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redisson_lock::{Error, LockConfig, Locks, LostReason, Majority, MajorityLock, MultiGuard};
use tokio::task::JoinSet;

use super::all_kinds::hold_as_another_owner;
use super::multi::{cut_calls, turns};
use super::{eventually, nothing_left, renewed, soon};
use testkit::redis_server::RedisServer;

const NAME: &str = "lock:settlement";

/// A lease so long that a key that disappears in a test was released.
const LONG: Duration = Duration::from_secs(60);

/// Long enough that a busy machine does not lose a vote by accident.
pub(super) const LEASE: Duration = Duration::from_secs(8);

pub(super) async fn servers<const N: usize>() -> [RedisServer; N] {
    let mut servers = Vec::new();
    for _ in 0..N {
        servers.push(RedisServer::start().await);
    }
    servers.try_into().expect("so many servers")
}

/// The locks of one process, one for each server.
pub(super) fn process(servers: &[RedisServer], lease: Duration) -> Vec<Locks> {
    process_with(servers, LockConfig::default().with_lease(lease))
}

/// The same, whose calls would wait for far longer than a test does for a server that does not answer.
fn patient_process(servers: &[RedisServer], lease: Duration) -> Vec<Locks> {
    let config = LockConfig::default().with_lease(lease);
    process_with(
        servers,
        config.with_command_timeout(LONG).with_connect_timeout(LONG),
    )
}

pub(super) fn process_with(servers: &[RedisServer], config: LockConfig) -> Vec<Locks> {
    let locks = |server: &RedisServer| Locks::lazy(server.client(), config.clone());
    servers
        .iter()
        .map(|server| locks(server).expect("a valid address"))
        .collect()
}

/// Three servers, the locks of one process, and its lock on all of them.
pub(super) async fn three(lease: Duration) -> ([RedisServer; 3], Vec<Locks>, MajorityLock) {
    let servers = servers().await;
    let locks = process(&servers, lease);
    let lock = lock_of(&locks);
    (servers, locks, lock)
}

/// Three servers, and the locks of two processes.
pub(super) async fn two_processes(lease: Duration) -> ([RedisServer; 3], [Vec<Locks>; 2]) {
    let servers = servers().await;
    let both = [process(&servers, lease), process(&servers, lease)];
    (servers, both)
}

/// The lock of this process.
pub(super) fn lock_of(process: &[Locks]) -> MajorityLock {
    Majority::new(process).unwrap().lock(NAME)
}

/// Acquires the lock with the votes of all servers. An acquire ends soon after a majority has granted it; a server that
/// grants it later is asked again only after a third of the lease.
pub(super) async fn acquire_on_all(lock: &MajorityLock, servers: usize) -> MultiGuard {
    for _ in 0..20 {
        let guard = soon("it is acquired", lock.acquire()).await.unwrap();
        if guard.held() == servers {
            return guard;
        }
    }
    panic!("a server was too slow twenty times");
}

/// Acquires and releases once on every server, so that all are connected and have the scripts.
async fn warm_up(locks: &[Locks]) {
    for locks in locks {
        let lock = locks.lock("warm-up");
        lock.acquire().await.unwrap().release().await.unwrap();
    }
}

pub(super) async fn nothing_left_on(servers: &[RedisServer], locks: &[&[Locks]]) {
    for (index, server) in servers.iter().enumerate() {
        let here: Vec<&Locks> = locks.iter().map(|process| &process[index]).collect();
        nothing_left(server, &here).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_owner_at_a_time_and_no_owner_starves() {
    const ROUNDS: u32 = 12;
    let (servers, [here, there]) = two_processes(LONG).await;
    let held = Arc::default();
    let mut tasks = JoinSet::new();
    for locks in [&here, &there, &here, &there] {
        tasks.spawn(turns(ROUNDS, lock_of(locks), &held));
    }
    while let Some(end) = soon("every task is done", tasks.join_next()).await {
        end.unwrap();
    }
    nothing_left_on(&servers, &[&here, &there]).await;
}

#[tokio::test]
async fn a_free_majority_is_enough_and_a_free_minority_is_not() {
    let servers = servers::<5>().await;
    let locks = process(&servers, LONG);
    let lock = lock_of(&locks);
    assert_eq!(Majority::new(&locks).unwrap().quorum(), 3);
    for servers in [vec![], vec![&locks[0], &locks[0]]] {
        fails_as!(Majority::new(servers), Rejected);
    }
    hold_as_another_owner(&mut servers[0].conn().await, NAME).await;
    hold_as_another_owner(&mut servers[1].conn().await, NAME).await;
    let guard = lock
        .try_acquire()
        .await
        .unwrap()
        .expect("three of five are free");
    assert_eq!(guard.held(), 3);
    assert!(lock.try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();

    hold_as_another_owner(&mut servers[2].conn().await, NAME).await;
    assert!(lock.try_acquire().await.unwrap().is_none());
    nothing_left_on(&servers[3..], &[&locks[3..]]).await;
}

#[tokio::test]
async fn validity_is_the_lease_less_clock_drift_and_elapsed_time() {
    let servers = servers::<3>().await;
    let locks = process(&servers, LONG);
    warm_up(&locks).await;
    let lease = Duration::from_secs(20);
    let lock = lock_of(&locks).without_renewal(lease);
    let started = Instant::now();
    let guard = lock.acquire().await.unwrap();
    let (valid, elapsed) = (guard.valid_for(), started.elapsed());
    let drift = Duration::from_millis(202);
    assert!(valid <= lease - drift, "{valid:?}");
    assert!(
        valid >= lease - drift - elapsed,
        "{valid:?} after {elapsed:?}"
    );
    guard.release().await.unwrap();

    // It ends before the keys do, by the drift.
    let lease = Duration::from_millis(600);
    let lock = lock.without_renewal(lease);
    let started = Instant::now();
    let guard = lock.acquire().await.unwrap();
    assert_eq!(
        soon("the lease ends", guard.lost()).await,
        LostReason::Expired
    );
    assert!(
        started.elapsed() >= lease - Duration::from_millis(8),
        "{:?}",
        started.elapsed()
    );
    drop(guard);
    nothing_left_on(&servers, &[&locks]).await;
}

#[tokio::test]
async fn a_killed_minority_does_not_end_the_lock() {
    let mut servers = servers::<3>().await;
    let (here, there) = (process(&servers, LEASE), patient_process(&servers, LEASE));
    warm_up(&here).await;
    let (lock, other) = (lock_of(&here), lock_of(&there));
    let guard = acquire_on_all(&lock, 3).await;
    servers[0].kill();
    eventually("its vote is lost", async || guard.held() == 2).await;
    // The two that are left renew it, and exclude others.
    renewed(|| guard.valid_for()).await;
    assert_eq!(guard.held(), 2);
    assert!(guard.valid_for() > Duration::ZERO);
    // A server that is slow to say so is a failure beside the dead one.
    let refused = other.try_acquire().await;
    assert!(
        matches!(refused, Ok(None) | Err(Error::Unavailable { .. })),
        "{refused:?}"
    );
    guard.release().await.unwrap();
    let guard = soon("the next acquires it", other.acquire()).await.unwrap();
    guard.release().await.unwrap();
    nothing_left_on(&servers[1..], &[&here[1..], &there[1..]]).await;
}

#[tokio::test]
async fn a_killed_majority_ends_the_lock_within_the_lease() {
    let lease = Duration::from_secs(2);
    let mut servers = servers::<3>().await;
    let (locks, patient) = (process(&servers, lease), patient_process(&servers, lease));
    let lock = lock_of(&locks);
    let guard = lock.acquire().await.unwrap();
    servers[0].kill();
    servers[2].kill();
    let killed = Instant::now();
    eventually("it is valid no longer", async || {
        let since = killed.elapsed();
        let valid = guard.valid_for();
        assert!(
            valid.is_zero() || since + valid <= lease,
            "valid for {valid:?} after {since:?}"
        );
        valid.is_zero()
    })
    .await;
    assert_eq!(
        soon("the loss is detected", guard.lost()).await,
        LostReason::Unreachable
    );
    assert!(guard.release().await.is_err());

    // Servers that refuse connections are not waited for.
    let other = lock_of(&patient);
    fails_as!(soon("an answer", other.try_acquire()).await, Unavailable);
    nothing_left_on(&servers[1..2], &[&locks[1..2]]).await;

    // One of them restarts, empty, which makes a majority again.
    servers[0].restart().await;
    drop(lock.acquire().await.unwrap());
    nothing_left_on(&servers[..2], &[&locks[..2]]).await;
}

#[tokio::test]
async fn a_paused_minority_is_not_waited_for() {
    let servers = servers::<3>().await;
    let locks = patient_process(&servers, LONG);
    warm_up(&locks).await;
    let lock = lock_of(&locks);
    servers[1].pause();
    for _ in 0..3 {
        let guard = soon("it acquires", lock.acquire()).await.unwrap();
        soon("it releases", guard.release()).await.unwrap();
    }
    // Once resumed it runs the acquire, with a lease of 60 s, and then the release.
    servers[1].resume();
    nothing_left_on(&servers, &[&locks]).await;
}

#[tokio::test]
async fn a_paused_majority_ends_the_call_at_its_limit() {
    let servers = servers::<3>().await;
    let (here, there) = (patient_process(&servers, LONG), process(&servers, LONG));
    warm_up(&here).await;
    warm_up(&there).await;
    let (lock, other) = (lock_of(&here), lock_of(&there));
    servers[0].pause();
    servers[1].pause();
    let limit = Duration::from_millis(300);
    let started = Instant::now();
    fails_as!(
        soon("its limit", lock.acquire_within(limit)).await,
        Unavailable
    );
    assert!(started.elapsed() >= limit, "{:?}", started.elapsed());
    // A call that does not wait ends with the command timeout.
    fails_as!(soon("the timeout", other.try_acquire()).await, Unavailable);
    servers[0].resume();
    servers[1].resume();
    nothing_left_on(&servers, &[&here, &there]).await;
}

#[tokio::test]
async fn a_majority_connects_as_long_as_most_servers_answer() {
    let mut servers = servers::<3>().await;
    let urls: Vec<String> = servers
        .iter()
        .map(|one| format!("redis://{}/", one.address()))
        .collect();
    let connect = async || {
        let config = LockConfig::default().with_lease(LONG);
        Majority::connect(urls.iter().map(String::as_str), config).await
    };
    servers[1].kill();
    let two = connect().await.unwrap();
    let guard = two.lock(NAME).acquire().await.unwrap();
    assert_eq!(guard.run(async { guard.held() }).await, Ok(2));
    guard.release().await.unwrap();
    two.shutdown().await;
    servers[2].kill();
    fails_as!(connect().await, Unavailable);
    fails_as!(
        Majority::connect(["no address"], LockConfig::default()).await,
        Rejected
    );
}

#[tokio::test]
async fn a_call_cancelled_at_any_point_leaves_nothing() {
    let (servers, [here, there]) = two_processes(LONG).await;
    warm_up(&here).await;
    let (lock, other) = (lock_of(&here), lock_of(&there));
    let hold = async || other.acquire().await.unwrap().release();
    cut_calls(&lock, hold, async || {
        nothing_left_on(&servers, &[&here, &there]).await
    })
    .await;
}
