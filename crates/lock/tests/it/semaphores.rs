//! What both kinds of semaphore have to do: permit counts, waiting, limits, lost replies, cancellation.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use redisson_lock::{
    Error, Leased, LockConfig, LockUsage, Locks, Permits, Plain, Semaphore, SemaphoreKind, Server,
};
use tokio::task::JoinSet;

use super::cancellation::{cut_after, cut_everywhere, released_later};
use super::{
    LEASE, LONG_LEASE, TIMEOUT, calls_of, connected, eventually, losing_reply, query, soon, start,
    start_behind_proxy,
};
use testkit::redis_cluster::RedisCluster;

const NAME: &str = "gate";
const LEASES: &str = "{gate}:timeout";

/// A lease so long that a permit that becomes free in a test was released.
const LONG: Duration = Duration::from_secs(600);

/// Either kind of semaphore.
pub(super) trait Gate: SemaphoreKind + Sized {
    fn of(locks: &Locks, name: &str) -> Semaphore<Self>;
}

impl Gate for Plain {
    fn of(locks: &Locks, name: &str) -> Semaphore {
        locks.semaphore(name)
    }
}

impl Gate for Leased {
    fn of(locks: &Locks, name: &str) -> Semaphore<Leased> {
        locks.leased_semaphore(name, LONG)
    }
}

/// A new semaphore with `permits`.
pub(super) async fn gate<G: Gate>(locks: &Locks, permits: u32) -> Semaphore<G> {
    let gate = G::of(locks, NAME);
    assert!(gate.try_set_permits(permits).await.expect("set permits"));
    gate
}

/// Waits until `permits` are free, none is held, and nothing else is left but records that expire.
pub(super) async fn all_back(raw: &mut MultiplexedConnection, locks: &[&Locks], permits: i64) {
    eventually(
        "all permits are free and no subscription is left",
        async || {
            let (free, held): (i64, i64) = redis::pipe()
                .get(NAME)
                .zcard(LEASES)
                .query_async(raw)
                .await
                .expect("both");
            assert!(free <= permits, "{free} are free of {permits}");
            let channels: Vec<String> = query(raw, "PUBSUB", &["CHANNELS"]).await;
            (free, held) == (permits, 0)
                && channels.is_empty()
                && locks
                    .iter()
                    .all(|locks| locks.usage() == LockUsage::default())
        },
    )
    .await;
    let keys: Vec<String> = query(raw, "KEYS", &["*"]).await;
    for key in keys
        .iter()
        .filter(|key| ![NAME, LEASES].contains(&key.as_str()))
    {
        assert!(key.starts_with("{gate}:permit:"), "{key}");
        let left: i64 = raw.pttl(key).await.expect("PTTL");
        // It may expire between the two commands.
        assert!(left > 0 || left == -2, "{key}: {left}");
    }
}

/// Starts a call that waits.
pub(super) fn waiting<K: SemaphoreKind>(
    gate: &Semaphore<K>,
    permits: u32,
) -> tokio::task::JoinHandle<Permits<K>> {
    let gate = gate.clone();
    tokio::spawn(async move { gate.acquire(permits).await.unwrap() })
}

async fn never_more_permits_are_held_than_exist<G: Gate>() {
    const PERMITS: u32 = 3;
    let (_server, mut raw, [here, there]) = start(LONG_LEASE).await;
    gate::<G>(&here, PERMITS).await;
    let (held, most) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
    let mut tasks = JoinSet::new();
    for number in 0..12u32 {
        let gate = G::of(if number % 2 == 0 { &here } else { &there }, NAME);
        let (held, most) = (held.clone(), most.clone());
        tasks.spawn(async move {
            for round in 0..15 {
                let wanted = 1 + (number + round) % PERMITS;
                let permits = gate.acquire(wanted).await.unwrap();
                let now = held.fetch_add(wanted.into(), Ordering::SeqCst) + i64::from(wanted);
                most.fetch_max(now, Ordering::SeqCst);
                tokio::task::yield_now().await;
                held.fetch_sub(wanted.into(), Ordering::SeqCst);
                permits.release().await.unwrap();
            }
        });
    }
    while let Some(end) = soon("every task is done", tasks.join_next()).await {
        end.unwrap();
    }
    assert_eq!(most.load(Ordering::SeqCst), i64::from(PERMITS));
    all_back(&mut raw, &[&here, &there], PERMITS.into()).await;
}

async fn permits_are_split_and_drained<G: Gate>() {
    let (_server, mut raw, [locks]) = start(LONG_LEASE).await;
    assert_eq!(
        G::of(&locks, NAME).available().await,
        Ok(0),
        "there is no semaphore"
    );
    assert!(G::of(&locks, NAME).try_acquire(1).await.unwrap().is_none());
    let gate = gate::<G>(&locks, 5).await;
    assert!(!gate.try_set_permits(9).await.unwrap(), "it exists");
    let mut four = gate.acquire(4).await.unwrap();
    assert!(gate.try_acquire(2).await.unwrap().is_none(), "all or none");
    assert!(four.split(5).is_none());
    let three = four.split(3).unwrap();
    let rest = gate.drain().await.unwrap();
    assert_eq!((four.count(), three.count(), rest.count()), (1, 3, 1));
    assert_eq!(gate.drain().await.unwrap().count(), 0);
    three.release().await.unwrap();
    assert_eq!(gate.available().await, Ok(3));
    four.release().await.unwrap();
    assert_eq!(gate.available().await, Ok(4));
    let stats = locks.stats();
    let stats = stats
        .iter()
        .find(|stats| stats.acquired > 0)
        .expect("the kind that was used");
    assert_eq!((stats.busy, stats.held_now), (2, 1));
    drop(rest);
    all_back(&mut raw, &[&locks], 5).await;
}

async fn a_waiter_is_woken_by_a_release_and_by_the_creation<G: Gate>() {
    let (_server, mut raw, [here, there]) = start(LONG_LEASE).await;
    let early = waiting(&G::of(&here, NAME), 1);
    eventually("it waits", async || here.usage().channels == 1).await;
    assert!(G::of(&there, NAME).try_set_permits(1).await.unwrap());
    let held = soon("it is created", early).await.unwrap();
    // By the limit too, in the middle of its wait.
    for limit in [None, Some(TIMEOUT * 3)] {
        let other = G::of(&there, NAME);
        let late = tokio::spawn(async move {
            match limit {
                None => other.acquire(1).await.unwrap(),
                Some(limit) => other
                    .acquire_within(1, limit)
                    .await
                    .unwrap()
                    .expect("in time"),
            }
        });
        eventually("it waits", async || there.usage().channels == 1).await;
        G::of(&here, NAME).add_permits(1).await.unwrap();
        soon("it is woken", late)
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        G::of(&here, NAME).add_permits(-1).await.unwrap();
    }
    held.release().await.unwrap();
    all_back(&mut raw, &[&here, &there], 1).await;
}

async fn acquire_within_ends_at_its_limit<G: Gate>() {
    let (_server, mut raw, [locks]) = start(LONG_LEASE).await;
    let gate = gate::<G>(&locks, 1).await;
    let held = gate.acquire(1).await.unwrap();
    for limit in [Duration::ZERO, Duration::from_millis(500)] {
        let started = Instant::now();
        // The head of the wait queue, and one behind it.
        let (first, second) =
            tokio::join!(gate.acquire_within(1, limit), gate.acquire_within(1, limit));
        assert!(first.unwrap().is_none() && second.unwrap().is_none());
        assert!(started.elapsed() >= limit, "{:?}", started.elapsed());
    }
    held.release().await.unwrap();
    all_back(&mut raw, &[&locks], 1).await;
}

async fn a_waiter_for_several_permits_is_not_overtaken<G: Gate>() {
    let (_server, mut raw, [locks]) = start(LONG_LEASE).await;
    let gate = gate::<G>(&locks, 1).await;
    // With the scripts loaded, every command is one call.
    gate.acquire(1).await.unwrap().release().await.unwrap();
    gate.add_permits(-1).await.unwrap();
    let mut calls = calls_of(&mut raw, "evalsha").await;
    let many = waiting(&gate, 3);
    // The second attempt is made at the head of the wait queue.
    calls += 2;
    eventually("it waits", async || {
        calls_of(&mut raw, "evalsha").await == calls
    })
    .await;
    let one = waiting(&gate, 1);
    calls += 1;
    eventually("the other has tried once", async || {
        calls_of(&mut raw, "evalsha").await == calls
    })
    .await;
    for _ in 0..2 {
        gate.add_permits(1).await.unwrap();
        calls += 2;
        eventually("the first has tried", async || {
            calls_of(&mut raw, "evalsha").await >= calls
        })
        .await;
        assert!(!one.is_finished(), "it overtook the first waiter");
    }
    gate.add_permits(1).await.unwrap();
    soon("it gets three", many)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    soon("it gets one", one)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    all_back(&mut raw, &[&locks], 3).await;
}

/// A waiter for more permits than there are holds the others of its process up for a while, not for
/// good.
async fn a_waiter_that_asks_for_too_much_does_not_block_the_others<G: Gate>() {
    let (_server, _, [locks]) = start(LEASE).await;
    let gate = gate::<G>(&locks, 2).await;
    let held = gate.acquire(2).await.unwrap();
    let greedy = waiting(&gate, 5);
    eventually("it waits", async || locks.usage().channels == 1).await;
    // Each gives its permit back by itself: the third can be served before the first.
    let modest: Vec<_> = (0..3)
        .map(|_| {
            let gate = gate.clone();
            tokio::spawn(async move { gate.acquire(1).await.unwrap().release().await.unwrap() })
        })
        .collect();
    held.release().await.unwrap();
    for waiter in modest {
        soon("the others acquire", waiter).await.unwrap();
    }
    // It gets what it asks for once there are as many.
    gate.add_permits(3).await.unwrap();
    soon("it acquires all", greedy)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    eventually("all are back", async || gate.available().await == Ok(5)).await;
}

async fn a_command_with_a_lost_reply_counts_once<G: Gate>() {
    let (server, proxy, locks) = start_behind_proxy(LockConfig::default()).await;
    let mut raw = server.conn().await;
    let gate = gate::<G>(&locks, 5).await;
    // Once without loss: with the scripts loaded, the next reply is the script's.
    gate.acquire(1).await.unwrap().release().await.unwrap();
    let two = losing_reply(&proxy, gate.try_acquire(2))
        .await
        .unwrap()
        .expect("they are free");
    assert_eq!(gate.available().await, Ok(3));
    losing_reply(&proxy, two.release()).await.unwrap();
    assert_eq!(gate.available().await, Ok(5));
    losing_reply(&proxy, gate.add_permits(2)).await.unwrap();
    assert_eq!(gate.available().await, Ok(7));
    // Whether this call created the semaphore cannot be known.
    let _: () = raw.del(NAME).await.unwrap();
    fails_as!(losing_reply(&proxy, gate.try_set_permits(5)).await, Unknown);
    all_back(&mut raw, &[&locks], 5).await;
}

async fn a_paused_server_ends_every_call_and_leaves_nothing<G: Gate>() {
    let (server, mut raw, [locks]) = start(LONG_LEASE).await;
    let gate = gate::<G>(&locks, 5).await;
    let held = gate.acquire(1).await.unwrap();
    gate.acquire(1).await.unwrap().release().await.unwrap();
    server.pause();
    let limit = Duration::from_millis(300);
    let started = Instant::now();
    fails_as!(
        soon("its limit", gate.acquire_within(2, limit)).await,
        Unavailable
    );
    assert!(started.elapsed() >= limit, "{:?}", started.elapsed());
    fails_as!(
        soon("the command timeout", gate.try_acquire(2)).await,
        Unavailable
    );
    fails_as!(soon("the command timeout", held.release()).await, Unknown);
    server.resume();
    all_back(&mut raw, &[&locks], 5).await;
}

async fn a_call_cancelled_at_any_point_leaves_nothing<G: Gate>() {
    let (_server, mut raw, [here, there]) = start(LONG_LEASE).await;
    let gate = gate::<G>(&here, 2).await;
    let other = G::of(&there, NAME);
    for case in 0..3 {
        cut_everywhere(&format!("case {case}"), async |polls| {
            let completed = match case {
                0 => cut_after(polls, gate.try_acquire(1))
                    .await
                    .map(Result::unwrap)
                    .is_some(),
                1 => {
                    let holder = other.acquire(2).await.unwrap();
                    let releasing = released_later(async move { holder.release().await });
                    let got = cut_after(polls, gate.acquire(1)).await.map(Result::unwrap);
                    releasing.await.unwrap();
                    got.is_some()
                }
                _ => {
                    let permits = gate.acquire(2).await.unwrap();
                    cut_after(polls, permits.release())
                        .await
                        .map(Result::unwrap)
                        .is_some()
                }
            };
            all_back(&mut raw, &[&here, &there], 2).await;
            completed
        })
        .await;
    }
}

async fn a_release_wakes_a_waiter_on_every_cluster_node<G: Gate>() {
    let cluster = RedisCluster::start().await;
    let connect = async || {
        let server = Server::cluster(cluster.urls()).unwrap();
        let config = LockConfig::default().with_lease(TIMEOUT * 6);
        connected(server, config).await.expect("connect")
    };
    let (here, there) = (connect().await, connect().await);
    // Names in slots of all nodes; one of them with a hash tag of its own.
    for name in [
        "gate:1",
        "gate:2",
        "gate:3",
        "gate:4",
        "gate:{5}:x",
        "gate:6",
    ] {
        let (gate, other) = (G::of(&here, name), G::of(&there, name));
        gate.add_permits(-1).await.unwrap();
        gate.add_permits(2).await.unwrap();
        let held = gate.acquire(1).await.unwrap();
        let waiter = waiting(&other, 1);
        eventually("it waits", async || there.usage().channels == 1).await;
        held.release().await.unwrap();
        soon("it is woken", waiter)
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        assert_eq!(gate.available().await, Ok(1));
    }
}

/// Makes each of these functions a test of each kind of semaphore.
macro_rules! both_kinds {
    ($($kind:ident: $semaphore:ty;)+) => {
        $(mod $kind {
            use super::*;
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn never_more_permits_are_held_than_exist() {
                super::never_more_permits_are_held_than_exist::<$semaphore>().await;
            }

            both_kinds!(@ $semaphore; permits_are_split_and_drained
                a_waiter_is_woken_by_a_release_and_by_the_creation acquire_within_ends_at_its_limit
                a_waiter_for_several_permits_is_not_overtaken
                a_waiter_that_asks_for_too_much_does_not_block_the_others
                a_command_with_a_lost_reply_counts_once
                a_paused_server_ends_every_call_and_leaves_nothing
                a_call_cancelled_at_any_point_leaves_nothing
                a_release_wakes_a_waiter_on_every_cluster_node);
        })+
    };
    (@ $semaphore:ty; $($test:ident)+) => {
        // On one thread: with two, a reply may come within the poll that is to be the last.
        $(#[tokio::test]
        async fn $test() {
            super::$test::<$semaphore>().await;
        })+
    };
}

both_kinds! {
    plain: Plain;
    leased: Leased;
}
