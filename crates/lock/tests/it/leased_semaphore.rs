//! The leased semaphore: wire format, permits that expire, lost replies.

use std::time::{Duration, Instant};

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use redisson_lock::{Error, LeasedSemaphore, LockConfig, Locks, Lost, LostReason};
use tokio::time::sleep;

use super::cancellation::{cut_after, cut_everywhere};
use super::semaphores::{all_back, waiting};
use super::{
    LEASE, LONG_LEASE, eventually, messages, next_message, query, renewed, soon, start, start_with,
    stats_of,
};

const NAME: &str = "gate";
const LEASES: &str = "{gate}:timeout";
const CHANNEL: &str = "redisson_sc:{gate}";

/// A lease so long that a permit that becomes free in a test was released.
const LONG: Duration = Duration::from_secs(60);

/// What Redisson's RPermitExpirableSemaphore does to release a permit, command by command.
const FOREIGN_RELEASE: &str = "redis.call('ZREM', KEYS[2], redis.call('ZRANGE', KEYS[2], 0, 0)[1])
    redis.call('PUBLISH', KEYS[3], redis.call('INCRBY', KEYS[1], 1))";

/// A semaphore of so many permits.
async fn semaphore(locks: &Locks, permits: u32, lease: Duration) -> LeasedSemaphore {
    let semaphore = locks.leased_semaphore(NAME, lease);
    assert!(
        semaphore
            .try_set_permits(permits)
            .await
            .expect("set permits")
    );
    semaphore
}

/// How many permits are free, and how many are acquired.
async fn counts(raw: &mut MultiplexedConnection) -> (i64, i64) {
    (
        raw.get(NAME).await.unwrap(),
        raw.zcard(LEASES).await.unwrap(),
    )
}

/// The server's clock, in Unix milliseconds.
async fn now(raw: &mut MultiplexedConnection) -> i64 {
    let (seconds, micros): (i64, i64) = query(raw, "TIME", &[]).await;
    seconds * 1000 + micros / 1000
}

#[tokio::test]
async fn the_wire_format_is_that_of_redisson() {
    let (server, mut raw, [locks]) = start(LONG_LEASE).await;
    let mut messages = messages(&server, CHANNEL).await;
    let gate = semaphore(&locks, 4, LONG).await;
    assert_eq!(next_message(&mut messages).await, "4");

    let before = now(&mut raw).await;
    let mut three = gate.try_acquire(3).await.unwrap().expect("they are free");
    let after = now(&mut raw).await;
    assert_eq!(raw.get::<_, String>(NAME).await.unwrap(), "1");
    let out: Vec<(Vec<u8>, i64)> = raw.zrange_withscores(LEASES, 0, -1).await.unwrap();
    let hex = |id: &[u8]| {
        id.iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let mut ids: Vec<String> = out.iter().map(|(id, _)| hex(id)).collect();
    ids.sort();
    assert_eq!(
        ids,
        three.ids().collect::<Vec<_>>(),
        "16 bytes each, as Redisson's"
    );
    for (_, expires) in &out {
        assert!(
            (before..=after).contains(&(expires - 60_000)),
            "{before} {expires} {after}"
        );
    }
    assert!(three.valid_for() <= LONG && three.valid_for() > LONG / 2);
    three.extend(LONG * 2).await.unwrap();
    let out: Vec<(Vec<u8>, i64)> = raw.zrange_withscores(LEASES, 0, -1).await.unwrap();
    assert!(
        out.iter().all(|(_, expires)| *expires == out[0].1),
        "one lease for all: {out:?}"
    );
    three.release().await.unwrap();
    assert_eq!(next_message(&mut messages).await, "4");
    assert_eq!(raw.exists::<_, i64>(LEASES).await.unwrap(), 0);

    let mut none = gate.acquire(0).await.unwrap();
    none.extend(LONG * 2).await.unwrap();
    assert_eq!((none.count(), none.ids().count()), (0, 0));
    none.release().await.unwrap();
    assert!(gate.try_acquire(u32::MAX).await.unwrap().is_none());

    // Permits that are split off keep their ids, and have a lease of their own.
    let mut four = gate.acquire(4).await.unwrap();
    let ids: Vec<String> = four.ids().collect();
    let mut two = four.split(2).unwrap();
    assert_eq!(four.ids().chain(two.ids()).collect::<Vec<_>>(), ids);
    two.extend(LONG * 2).await.unwrap();
    assert!(two.valid_for() > LONG && four.valid_for() <= LONG);
    two.release().await.unwrap();
    four.release().await.unwrap();

    // An expiry of the whole semaphore, which Redisson can set, applies to the permits too.
    let _: bool = raw.pexpire(NAME, 50_000).await.unwrap();
    let permit = gate.try_acquire(1).await.unwrap().unwrap();
    let left: i64 = raw.pttl(LEASES).await.unwrap();
    assert!(left > 0 && left <= 50_000, "{left}");
    permit.release().await.unwrap();
    drop(messages);
    all_back(&mut raw, &[&locks], 4).await;
}

#[tokio::test]
async fn a_release_by_another_client_library_wakes_a_waiter() {
    // Waiters try by themselves, and calls end, only after a time far longer than the test.
    let config = LockConfig::default()
        .with_lease(LONG * 10)
        .with_command_timeout(LONG);
    let (_server, mut raw, [locks]) = start_with(config).await;
    let gate = semaphore(&locks, 0, LONG).await;
    // Redisson's expiry of a permit without a lease: the end of time.
    let _: () = raw
        .zadd(LEASES, "a client's", 922_337_203_685_477i64)
        .await
        .unwrap();
    let waiting = waiting(&gate, 1);
    eventually("it waits", async || locks.usage().channels == 1).await;
    let _: () = query(
        &mut raw,
        "EVAL",
        &[FOREIGN_RELEASE, "3", NAME, LEASES, CHANNEL],
    )
    .await;
    let permit = soon("it is woken", waiting).await.unwrap();
    permit.release().await.unwrap();
    all_back(&mut raw, &[&locks], 1).await;
}

#[tokio::test]
async fn a_lease_expires_unless_extended() {
    let (_server, mut raw, [locks]) = start(LONG_LEASE).await;
    let gate = semaphore(&locks, 1, LONG).await;

    let mut permit = gate.acquire(1).await.unwrap();
    permit.extend(LONG * 2).await.unwrap();
    assert!(permit.valid_for() > LONG);
    let out: Vec<(Vec<u8>, i64)> = raw.zrange_withscores(LEASES, 0, -1).await.unwrap();
    assert!(
        out[0].1 > now(&mut raw).await + 60_000,
        "the server knows: {out:?}"
    );
    assert_eq!(gate.available().await.unwrap(), 0);
    permit.extend(Duration::from_millis(20)).await.unwrap();
    assert!(permit.valid_for() <= Duration::from_millis(20));

    let mut next = soon("the lease ends", gate.acquire(1)).await.unwrap();
    assert_eq!(permit.valid_for(), Duration::ZERO);
    assert_eq!(
        permit.extend(LONG).await,
        Err(Error::Lost(LostReason::Expired))
    );
    // A release after expiry frees no permit.
    assert_eq!(
        permit.release().await,
        Err(Error::Lost(LostReason::Expired))
    );
    assert_eq!(raw.get::<_, i64>(NAME).await.unwrap(), 0);
    // An expired permit that is not yet collected becomes free once.
    next.extend(Duration::from_millis(20)).await.unwrap();
    eventually("it is free", async || gate.available().await.unwrap() == 1).await;
    assert_eq!(next.release().await, Err(Error::Lost(LostReason::Expired)));
    all_back(&mut raw, &[&locks], 1).await;
}

#[tokio::test]
async fn an_extension_cancelled_at_any_point_leaves_nothing() {
    let (_server, mut raw, [locks]) = start(LONG_LEASE).await;
    let gate = semaphore(&locks, 1, LONG).await;
    cut_everywhere("extend", async |polls| {
        let mut permit = gate.acquire(1).await.unwrap();
        let done = cut_after(polls, permit.extend(LONG))
            .await
            .map(Result::unwrap)
            .is_some();
        drop(permit);
        all_back(&mut raw, &[&locks], 1).await;
        done
    })
    .await;
}

#[tokio::test]
async fn renewed_permits_outlive_their_lease_until_they_are_lost() {
    let (_server, mut raw, [locks]) = start(LONG_LEASE).await;
    let gate = semaphore(&locks, 3, LEASE).await.with_renewal();
    let mut both = gate.acquire(2).await.unwrap();
    let one = both.split(1).unwrap();
    for _ in 0..4 {
        renewed(|| both.valid_for()).await;
        renewed(|| one.valid_for()).await;
        assert_eq!(gate.available().await.unwrap(), 1);
    }
    one.release().await.unwrap();
    assert_eq!(both.run(gate.available()).await.unwrap(), Ok(2));
    let _: i64 = raw.del(LEASES).await.unwrap();
    let lost = soon(
        "the loss is detected",
        both.run(std::future::pending::<()>()),
    )
    .await;
    assert_eq!(lost, Err(Lost(LostReason::Expired)));
    assert_eq!(both.release().await, Err(Error::Lost(LostReason::Expired)));
    let stats = stats_of(&locks, "leased_semaphore");
    assert_eq!((stats.lost.total(), stats.held_now), (1, 0));
    assert!(stats.renewed >= 8, "{}", stats.renewed);
}

/// Each time before their renewal is due.
#[tokio::test]
async fn permits_that_are_split_again_and_again_are_renewed() {
    let (_server, _, [locks]) = start(LONG_LEASE).await;
    let gate = semaphore(&locks, 10, LEASE).await.with_renewal();
    let mut rest = gate.acquire(10).await.unwrap();
    let (mut parts, begun) = (Vec::new(), Instant::now());
    while begun.elapsed() < LEASE * 3 / 2 {
        parts.push(rest.split(1).unwrap());
        sleep(LEASE / 5).await;
    }
    assert_eq!(gate.available().await.unwrap(), 0);
    assert!(rest.valid_for() > Duration::ZERO);
}

#[tokio::test]
async fn a_waiter_for_several_permits_acquires_when_enough_have_expired() {
    let (_server, mut raw, [locks]) = start(LONG_LEASE).await;
    let gate = semaphore(&locks, 0, LONG).await;
    let now = now(&mut raw).await;
    let crashed = [
        ("one", now + 300),
        ("two", now + 900),
        ("three", now + 60_000),
    ];
    for (id, expires) in crashed {
        let _: () = raw.zadd(LEASES, id, expires).await.unwrap();
    }
    let started = Instant::now();
    let two = soon("two leases end", gate.acquire(2)).await.unwrap();
    let took = started.elapsed();
    // A waiter that did not know the end of the lease would retry every ten seconds.
    assert!(
        took > Duration::from_millis(500) && took < Duration::from_secs(6),
        "{took:?}"
    );
    assert_eq!(counts(&mut raw).await, (0, 3));
    two.release().await.unwrap();
    assert_eq!(counts(&mut raw).await, (2, 1));
}

#[tokio::test]
async fn what_is_left_of_several_permits_is_released_when_one_was_lost() {
    let (_server, mut raw, [locks]) = start(LONG_LEASE).await;
    let gate = semaphore(&locks, 3, LONG).await;
    let mut three = gate.acquire(3).await.unwrap();
    // As a client of Redisson's whose clock is fast does: one permit is collected as expired.
    let _: () = query(&mut raw, "ZPOPMIN", &[LEASES]).await;
    let _: i64 = raw.incr(NAME, 1).await.unwrap();
    assert_eq!(
        three.extend(LONG).await,
        Err(Error::Lost(LostReason::Expired))
    );
    assert_eq!(three.valid_for(), Duration::ZERO);
    assert_eq!(three.release().await, Err(Error::Lost(LostReason::Expired)));
    assert_eq!(counts(&mut raw).await, (3, 0));
}

/// Expired permits pay off what is missing, too, and a waiter knows when enough will have expired.
#[tokio::test]
async fn permits_below_zero_are_paid_off_by_expiry() {
    const ALL: [Duration; 3] = [
        Duration::from_secs(3),
        Duration::from_secs(4),
        Duration::from_secs(60),
    ];
    let (_server, _, [locks]) = start(LONG_LEASE).await;
    let gate = |lease| locks.leased_semaphore(NAME, lease);
    gate(ALL[0]).try_set_permits(3).await.unwrap();
    let started = Instant::now();
    for lease in ALL {
        std::mem::forget(gate(lease).acquire(1).await.unwrap());
    }
    gate(ALL[0]).add_permits(-1).await.unwrap();
    assert_eq!(gate(ALL[0]).available().await.unwrap(), -1);
    // The first to expire makes good for the one that was removed, the second is free.
    let permit = soon("it acquires the second", gate(ALL[2]).acquire(1))
        .await
        .unwrap();
    // Without a message, and long before it would try again by itself.
    assert!(started.elapsed() >= ALL[1], "{:?}", started.elapsed());
    assert_eq!(gate(ALL[0]).available().await.unwrap(), 0);
    assert!(gate(ALL[0]).try_acquire(1).await.unwrap().is_none());
    permit.release().await.unwrap();
    assert_eq!(gate(ALL[0]).available().await.unwrap(), 1);
}
