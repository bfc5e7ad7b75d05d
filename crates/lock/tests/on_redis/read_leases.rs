//! Leases of several read holds of one owner: each hold keeps its own until it is released.

use std::time::{Duration, Instant};

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use redisson_lock::LockConfig;

use super::{LONG_LEASE, eventually, nothing_left, soon, start, start_behind_proxy};
use testkit::proxy::Mode;

const NAME: &str = "catalogue";
const SHORT: Duration = Duration::from_millis(4_500);
const LONG: Duration = Duration::from_secs(60);

/// The expiry of the lock and of the first hold, in ms.
async fn expiries(raw: &mut MultiplexedConnection, owner: &redisson_lock::Owner) -> (i64, i64) {
    let hold = format!("{{{NAME}}}:{owner}:rwlock_timeout:1");
    (raw.pttl(NAME).await.unwrap(), raw.pttl(hold).await.unwrap())
}

#[tokio::test]
async fn releasing_one_read_hold_does_not_lengthen_the_others() {
    let (server, mut raw, [locks]) = start(LONG_LEASE).await;
    let read = locks.read_write(NAME).read().clone();
    let owner = locks.owner();
    for inner_lease in [SHORT, LONG] {
        let outer = read
            .clone()
            .without_renewal(SHORT)
            .acquire_as(&owner)
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        let inner = read
            .clone()
            .without_renewal(inner_lease)
            .acquire_as(&owner)
            .await
            .unwrap();
        inner.release().await.unwrap();
        let (key, hold) = expiries(&mut raw, &owner).await;
        assert!(
            (1..=4_000).contains(&hold),
            "{hold} ms for the hold that is left"
        );
        assert!((1..=4_000).contains(&key), "{key} ms for the lock");
        assert!(
            outer.valid_for() <= Duration::from_secs(4),
            "{:?}",
            outer.valid_for()
        );
        assert!(outer.valid_for() > Duration::ZERO);
        outer.release().await.unwrap();
    }
    // A writer is let in as soon as the hold that is left has ended.
    let outer = read
        .clone()
        .without_renewal(SHORT)
        .acquire_as(&owner)
        .await
        .unwrap();
    let inner = read
        .clone()
        .without_renewal(LONG)
        .acquire_as(&owner)
        .await
        .unwrap();
    inner.release().await.unwrap();
    soon("the hold that is left ends", outer.lost()).await;
    let lock = locks.read_write(NAME);
    let writing = soon("a writer gets in", lock.write().acquire())
        .await
        .unwrap();
    writing.release().await.unwrap();
    drop(outer);
    nothing_left(&server, &[&locks]).await;
}

/// The guard that is released first is not the one of the last hold.
#[tokio::test]
async fn releasing_the_outer_read_hold_leaves_the_inner_its_lease() {
    let (server, mut raw, [locks]) = start(LONG_LEASE).await;
    let read = locks.read_write(NAME).read().clone();
    let owner = locks.owner();
    let other_reader = read.clone().without_renewal(SHORT).acquire().await.unwrap();
    let outer = read
        .clone()
        .without_renewal(SHORT)
        .acquire_as(&owner)
        .await
        .unwrap();
    let inner = read
        .clone()
        .without_renewal(LONG)
        .acquire_as(&owner)
        .await
        .unwrap();
    // The key lives as long as the longest hold, whichever number that has.
    let third = read.acquire().await.unwrap();
    third.release().await.unwrap();
    let (key, _) = expiries(&mut raw, &owner).await;
    assert!((50_000..=60_000).contains(&key), "{key} ms for the lock");
    // An extension that is shorter than what is left changes nothing.
    inner.extend(Duration::from_secs(1)).await.unwrap();
    outer.release().await.unwrap();
    let (key, hold) = expiries(&mut raw, &owner).await;
    assert!(
        hold > 50_000 && key > 50_000,
        "{hold} ms for the hold that is left, {key} ms"
    );
    assert!(
        inner.valid_for() > Duration::from_secs(50),
        "{:?}",
        inner.valid_for()
    );
    inner.release().await.unwrap();
    other_reader.release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}

/// If the server has not executed the release, the hold that is left may have the lease of the released one.
#[tokio::test]
async fn a_read_hold_beside_one_whose_release_is_not_answered_counts_on_the_shorter_lease() {
    let config = LockConfig::default().with_command_timeout(Duration::from_secs(1));
    let (server, proxy, locks) = start_behind_proxy(config).await;
    let read = locks.read_write(NAME).read().clone();
    let owner = locks.owner();
    let outer = read
        .clone()
        .without_renewal(SHORT)
        .acquire_as(&owner)
        .await
        .unwrap();
    let inner = read
        .clone()
        .without_renewal(LONG)
        .acquire_as(&owner)
        .await
        .unwrap();
    proxy.set(Mode::Hang);
    outer.release().await.unwrap();
    let valid = inner.valid_for();
    assert!(valid <= SHORT, "{valid:?}");
    proxy.set(Mode::Forward);
    drop(inner);
    nothing_left(&server, &[&locks]).await;
}

/// One hold has less of its lease left than the other: that is no loss.
#[tokio::test]
async fn every_hold_of_a_reader_is_renewed_and_the_longest_counts() {
    let (server, mut raw, [locks]) = start(Duration::from_secs(6)).await;
    let read = locks.read_write(NAME).read().clone();
    let owner = locks.owner();
    let outer = read.acquire_as(&owner).await.unwrap();
    let inner = read.acquire_as(&owner).await.unwrap();
    let second = format!("{{{NAME}}}:{owner}:rwlock_timeout:2");
    // Still there when they are renewed, 2 s later.
    let _: bool = raw.pexpire(&second, 3_500).await.unwrap();
    let change = Duration::from_millis(500);
    let end = Instant::now() + outer.valid_for();
    eventually("the end is another", async || {
        let now = Instant::now() + outer.valid_for();
        now > end + change || now + change < end
    })
    .await;
    let valid = outer.valid_for();
    assert!(valid > Duration::from_secs(2), "{valid:?}");
    let pttl: i64 = raw.pttl(&second).await.unwrap();
    assert!(pttl > 2_000, "{pttl} ms for the second hold");
    inner.release().await.unwrap();
    outer.release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}

/// A hold is renewed a third of its lease after its acquire. Another hold that begins meanwhile does not
/// postpone that.
#[tokio::test]
async fn a_reader_that_reenters_all_the_time_is_renewed() {
    let lease = Duration::from_secs(3);
    let (server, _, [locks]) = start(lease).await;
    let read = locks.read_write(NAME).read().clone();
    let owner = locks.owner();
    let outer = read.acquire_as(&owner).await.unwrap();
    let end = Instant::now() + lease * 3 / 2;
    while Instant::now() < end {
        let inner = read.acquire_as(&owner).await.unwrap();
        inner.release().await.unwrap();
        tokio::time::sleep(lease / 30).await;
    }
    outer.release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}

/// Redisson up to 4.3.1 renews the holds of all readers, to its own lease.
#[tokio::test]
async fn a_lease_that_another_client_shortens_is_noticed() {
    let (server, mut raw, [locks]) = start(Duration::from_secs(6)).await;
    let guard = locks.read_write(NAME).read().acquire().await.unwrap();
    let hold = format!("{{{NAME}}}:{}:rwlock_timeout:1", guard.owner());
    let shorten = Duration::from_secs(2);
    let other_client = tokio::spawn({
        let mut raw = raw.clone();
        async move {
            loop {
                let millis = i64::try_from(shorten.as_millis()).unwrap();
                let _: bool = raw.pexpire(&hold, millis).await.unwrap();
                let _: bool = raw.pexpire(NAME, millis).await.unwrap();
                tokio::time::sleep(shorten / 5).await;
            }
        }
    });
    eventually("it is noticed", async || guard.valid_for() < shorten).await;
    let end = Instant::now() + shorten * 2;
    while Instant::now() < end {
        let valid = guard.valid_for();
        assert!(valid > Duration::ZERO && valid <= shorten, "{valid:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    other_client.abort();
    assert!(raw.exists::<_, bool>(NAME).await.unwrap());
    guard.release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}
