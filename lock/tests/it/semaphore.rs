//! The semaphore: wire format, permit counts, the order of waiters, lost replies.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use redisson_lock::{Error, LockConfig, LockUsage, Locks, LostReason, Replicas, Semaphore, Server};
use tokio::task::JoinSet;

use super::cancellation::{cut_after, cut_everywhere, released_later};
use super::{calls_of, eventually, long_locks, losing_reply, query, soon};
use crate::support::proxy::Proxy;
use crate::support::redis_cluster::RedisCluster;
use crate::support::redis_server::RedisServer;

const NAME: &str = "gate";
const CHANNEL: &str = "redisson_sc:{gate}";

/// What Redisson's RSemaphore does to release permits: adds them, and publishes the number free.
const FOREIGN_RELEASE: &str =
    "redis.call('PUBLISH', KEYS[2], redis.call('INCRBY', KEYS[1], ARGV[1]))";

/// A new semaphore with `permits`.
async fn semaphore(locks: &Locks, permits: u32) -> Semaphore {
    let semaphore = locks.semaphore(NAME);
    assert!(semaphore.try_set_permits(permits).await.expect("set permits"));
    semaphore
}

/// Waits until `permits` are free and nothing else is left but records that expire.
async fn all_back(raw: &mut MultiplexedConnection, locks: &[&Locks], permits: i64) {
    eventually("all permits are free and no subscription is left", async || {
        let free: i64 = raw.get(NAME).await.expect("GET");
        assert!(free <= permits, "{free} are free of {permits}");
        let channels: Vec<String> = query(raw, "PUBSUB", &["CHANNELS"]).await;
        free == permits
            && channels.is_empty()
            && locks.iter().all(|locks| locks.usage() == LockUsage::default())
    })
    .await;
    let keys: Vec<String> = query(raw, "KEYS", &["*"]).await;
    for key in keys.iter().filter(|key| *key != NAME) {
        assert!(key.starts_with("{gate}:permit:"), "{key}");
        let left: i64 = raw.pttl(key).await.expect("PTTL");
        // It may expire between the two commands.
        assert!(left > 0 || left == -2, "{key}: {left}");
    }
}

/// The next message.
pub async fn next_message<S: StreamExt<Item = redis::Msg> + Unpin>(messages: &mut S) -> String {
    let message = soon("a message", messages.next()).await.expect("an open connection");
    String::from_utf8(message.get_payload_bytes().to_vec()).unwrap()
}

#[tokio::test]
async fn the_wire_format_is_that_of_redisson() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let mut pubsub = server.client().get_async_pubsub().await.unwrap();
    pubsub.subscribe(CHANNEL).await.unwrap();
    let mut messages = pubsub.into_on_message();
    let locks = long_locks(&server).await;
    let semaphore = locks.semaphore(NAME);

    assert!(semaphore.try_acquire(1).await.unwrap().is_none(), "there is no semaphore");
    assert!(semaphore.try_set_permits(5).await.unwrap());
    assert_eq!(raw.get::<_, String>(NAME).await.unwrap(), "5");
    assert_eq!(next_message(&mut messages).await, "5");
    assert!(!semaphore.try_set_permits(9).await.unwrap(), "it exists");

    let three = semaphore.try_acquire(3).await.unwrap().unwrap();
    assert_eq!((three.count(), raw.get::<_, i64>(NAME).await.unwrap()), (3, 2));
    assert!(semaphore.try_acquire(3).await.unwrap().is_none(), "all or none");
    assert_eq!(semaphore.available().await.unwrap(), 2);
    three.release().await.unwrap();
    assert_eq!(
        (next_message(&mut messages).await, semaphore.available().await.unwrap()),
        ("5".to_owned(), 5)
    );

    semaphore.add_permits(2).await.unwrap();
    assert_eq!(
        (next_message(&mut messages).await, semaphore.available().await.unwrap()),
        ("7".to_owned(), 7)
    );
    semaphore.try_acquire(1).await.unwrap().unwrap().forget();
    semaphore.add_permits(-8).await.unwrap();
    assert_eq!(semaphore.available().await.unwrap(), -2);
    // With no permit free, nothing was published: the next message is that of the next call.
    semaphore.add_permits(3).await.unwrap();
    assert_eq!(next_message(&mut messages).await, "1");
    assert_eq!(raw.ttl::<_, i64>(NAME).await.unwrap(), -1);
    semaphore.try_acquire(0).await.unwrap().unwrap().release().await.unwrap();
    drop(messages);
    all_back(&mut raw, &[&locks], 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_more_permits_are_held_than_exist() {
    const PERMITS: u32 = 3;
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let (here, there) = (long_locks(&server).await, long_locks(&server).await);
    semaphore(&here, PERMITS).await;
    let (held, most) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
    let mut tasks = JoinSet::new();
    for number in 0..12u32 {
        let locks = if number % 2 == 0 { &here } else { &there };
        let semaphore = locks.semaphore(NAME);
        let (held, most) = (held.clone(), most.clone());
        tasks.spawn(async move {
            for round in 0..15 {
                let wanted = 1 + (number + round) % PERMITS;
                let permits = semaphore.acquire(wanted).await.unwrap();
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

#[tokio::test]
async fn one_message_about_several_permits_wakes_several_waiters() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = long_locks(&server).await;
    let gate = semaphore(&locks, 0).await;
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        let gate = gate.clone();
        tasks.spawn(async move { gate.acquire(1).await.unwrap() });
    }
    eventually("they wait", async || locks.usage().channels == 1).await;
    // Another client releases four at once, with one message.
    let released = Instant::now();
    let _: () = query(&mut raw, "EVAL", &[FOREIGN_RELEASE, "2", NAME, CHANNEL, "4"]).await;
    let mut permits = Vec::new();
    while let Some(end) = soon("every task is done", tasks.join_next()).await {
        permits.push(end.unwrap());
    }
    // Without a message they would retry every ten seconds.
    assert!(released.elapsed() < Duration::from_secs(5), "{:?}", released.elapsed());
    assert!(gate.try_acquire(1).await.unwrap().is_none());
    drop(permits);
    all_back(&mut raw, &[&locks], 4).await;
}

#[tokio::test]
async fn a_waiter_for_several_permits_is_not_overtaken() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = long_locks(&server).await;
    let gate = semaphore(&locks, 1).await;
    // With the scripts loaded, every command is one call.
    gate.acquire(1).await.unwrap().release().await.unwrap();
    gate.add_permits(-1).await.unwrap();
    let mut calls = calls_of(&mut raw, "evalsha").await;
    let many = tokio::spawn({
        let gate = gate.clone();
        async move { gate.acquire(3).await.unwrap() }
    });
    // The second attempt is made at the head of the wait queue.
    calls += 2;
    eventually("it waits", async || calls_of(&mut raw, "evalsha").await == calls).await;
    let one = tokio::spawn({
        let gate = gate.clone();
        async move { gate.acquire(1).await.unwrap() }
    });
    calls += 1;
    eventually("the other has tried once", async || calls_of(&mut raw, "evalsha").await == calls)
        .await;
    for _ in 0..2 {
        gate.add_permits(1).await.unwrap();
        calls += 2;
        eventually("the first has tried", async || calls_of(&mut raw, "evalsha").await >= calls)
            .await;
        assert!(!one.is_finished(), "it overtook the first waiter");
    }
    assert_eq!(gate.available().await.unwrap(), 2);
    gate.add_permits(1).await.unwrap();
    let many = soon("it gets three", many).await.unwrap();
    many.release().await.unwrap();
    let one = soon("it gets one", one).await.unwrap();
    one.release().await.unwrap();
    all_back(&mut raw, &[&locks], 3).await;
}

#[tokio::test]
async fn a_waiter_is_woken_by_a_release_and_by_the_creation() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let (here, there) = (long_locks(&server).await, long_locks(&server).await);
    let gate = here.semaphore(NAME);
    let waiting = tokio::spawn({
        let gate = gate.clone();
        async move { gate.acquire(1).await.unwrap() }
    });
    eventually("it waits", async || here.usage().channels == 1).await;
    let created = Instant::now();
    assert!(there.semaphore(NAME).try_set_permits(1).await.unwrap());
    let held = soon("it is created", waiting).await.unwrap();

    let other = there.semaphore(NAME);
    let waiting = tokio::spawn(async move { other.acquire(1).await.unwrap() });
    eventually("it waits", async || there.usage().channels == 1).await;
    held.release().await.unwrap();
    soon("it is woken", waiting).await.unwrap().release().await.unwrap();
    assert!(created.elapsed() < Duration::from_secs(8), "{:?}", created.elapsed());
    all_back(&mut raw, &[&here, &there], 1).await;
}

#[tokio::test]
async fn acquire_within_ends_at_its_limit() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = long_locks(&server).await;
    let gate = semaphore(&locks, 1).await;
    let held = gate.acquire(1).await.unwrap();
    for limit in [Duration::ZERO, Duration::from_millis(200)] {
        let started = Instant::now();
        // The head of the wait queue, and one behind it.
        let (first, second) =
            tokio::join!(gate.acquire_within(1, limit), gate.acquire_within(1, limit));
        assert!(first.unwrap().is_none() && second.unwrap().is_none());
        let took = started.elapsed();
        assert!(took >= limit && took < limit + Duration::from_secs(2), "{took:?}");
    }
    held.release().await.unwrap();
    all_back(&mut raw, &[&locks], 1).await;
}

#[tokio::test]
async fn a_command_with_a_lost_reply_counts_once() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let locks = Locks::connect(proxy.redis(), LockConfig::default()).await.unwrap();
    let gate = semaphore(&locks, 5).await;
    // Once without loss: with the scripts loaded, the next reply is the script's.
    gate.acquire(1).await.unwrap().release().await.unwrap();

    let two = losing_reply(&proxy, gate.try_acquire(2)).await.unwrap().expect("they are free");
    assert_eq!(gate.available().await.unwrap(), 3);
    losing_reply(&proxy, two.release()).await.unwrap();
    assert_eq!(gate.available().await.unwrap(), 5);
    losing_reply(&proxy, gate.add_permits(2)).await.unwrap();
    assert_eq!(gate.available().await.unwrap(), 7);
    assert!(losing_reply(&proxy, gate.add_permits_if_exists(2)).await.unwrap());
    assert_eq!(gate.available().await.unwrap(), 9);

    // Whether this call created the semaphore cannot be known.
    let _: () = raw.del(NAME).await.unwrap();
    let error = losing_reply(&proxy, gate.try_set_permits(5)).await.unwrap_err();
    assert!(matches!(error, Error::Unknown { .. }), "{error:?}");
    all_back(&mut raw, &[&locks], 5).await;
}

#[tokio::test]
async fn permits_are_added_only_to_a_semaphore_that_exists() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = long_locks(&server).await;
    let gate = locks.semaphore(NAME);
    assert!(!gate.add_permits_if_exists(2).await.unwrap());
    assert!(!raw.exists::<_, bool>(NAME).await.unwrap());
    semaphore(&locks, 0).await;
    let waiting = tokio::spawn({
        let gate = gate.clone();
        async move { gate.acquire(2).await.unwrap() }
    });
    eventually("it waits", async || locks.usage().channels == 1).await;
    assert!(gate.add_permits_if_exists(2).await.unwrap());
    soon("it is woken", waiting).await.unwrap().release().await.unwrap();
    all_back(&mut raw, &[&locks], 2).await;
}

#[tokio::test]
async fn a_paused_server_ends_the_call_and_leaves_nothing() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = long_locks(&server).await;
    let gate = semaphore(&locks, 5).await;
    let held = gate.acquire(1).await.unwrap();
    gate.acquire(1).await.unwrap().release().await.unwrap();
    server.pause();
    let limit = Duration::from_millis(300);
    let started = Instant::now();
    let limited = gate.acquire_within(2, limit).await;
    assert!(matches!(limited, Err(Error::Unavailable { .. })), "{limited:?}");
    let took = started.elapsed();
    assert!(took >= limit && took < limit + Duration::from_millis(600), "{took:?}");
    let error = gate.try_acquire(2).await.map(drop).unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let error = held.release().await.unwrap_err();
    assert!(matches!(error, Error::Unknown { .. }), "{error:?}");
    server.resume();
    all_back(&mut raw, &[&locks], 5).await;
}

#[tokio::test]
async fn permits_that_too_few_replicas_have_are_released() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let replicas = Replicas::new(1, Duration::from_millis(100));
    let config = LockConfig::default().with_replicas(replicas);
    let locks = Locks::connect(server.client(), config).await.unwrap();
    let gate = semaphore(&locks, 5).await;
    let error = gate.try_acquire(2).await.map(drop).unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert_eq!(gate.available().await.unwrap(), 5);
    all_back(&mut raw, &[&locks], 5).await;
}

#[tokio::test]
async fn an_acquire_that_arrives_after_its_undo_acquires_nothing() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let _: () = raw.set(NAME, 5).await.unwrap();
    let (acquire, release) = (
        include_str!("../../lua/semaphore_acquire.lua"),
        include_str!("../../lua/semaphore_release.lua"),
    );
    let record = "{gate}:permit:1";
    let undo = [release, "2", NAME, record, "2", "60000", "taken", CHANNEL, "PUBLISH"];
    let attempt = [acquire, "2", NAME, record, "2", "600000"];
    assert_eq!(query::<i64>(&mut raw, "EVAL", &undo).await, 0);
    assert_eq!(query::<i64>(&mut raw, "EVAL", &attempt).await, 0);
    assert_eq!(query::<i64>(&mut raw, "EVAL", &undo).await, 0);
    assert_eq!(raw.get::<_, i64>(NAME).await.unwrap(), 5);
    // In order, both take effect, and only once however often they are sent.
    let _: () = raw.del(record).await.unwrap();
    for _ in 0..2 {
        assert_eq!(query::<i64>(&mut raw, "EVAL", &attempt).await, 1);
        assert_eq!(raw.get::<_, i64>(NAME).await.unwrap(), 3);
    }
    for _ in 0..2 {
        assert_eq!(query::<i64>(&mut raw, "EVAL", &undo).await, 1);
        assert_eq!(raw.get::<_, i64>(NAME).await.unwrap(), 5);
    }
}

#[tokio::test]
async fn permits_of_a_deleted_semaphore_are_not_held() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = long_locks(&server).await;
    let gate = semaphore(&locks, 5).await;
    let (one, two) = (gate.acquire(1).await.unwrap(), gate.acquire(2).await.unwrap());
    let _: () = query(&mut raw, "FLUSHALL", &[]).await;
    assert_eq!(one.release().await, Err(Error::Lost(LostReason::Expired)));
    assert!(!raw.exists::<_, bool>(NAME).await.unwrap());
    // Nor are they added to the permits of a new one.
    assert!(gate.try_set_permits(5).await.unwrap());
    assert_eq!(two.release().await, Err(Error::Lost(LostReason::Expired)));
    all_back(&mut raw, &[&locks], 5).await;
}

#[tokio::test]
async fn both_semaphores_and_multi_locks_work_on_every_cluster_node() {
    let cluster = RedisCluster::start().await;
    let connect = async || {
        let server = Server::cluster(cluster.urls()).unwrap();
        Locks::connect(server, LockConfig::default()).await.expect("connect")
    };
    let (here, there) = (connect().await, connect().await);
    // Names in slots of all nodes; one of them with a hash tag of its own.
    for name in ["gate:1", "gate:2", "gate:3", "gate:4", "gate:{5}:x", "gate:6"] {
        let (gate, other) = (here.semaphore(name), there.semaphore(name));
        gate.add_permits(-1).await.unwrap();
        gate.add_permits(2).await.unwrap();
        let held = gate.acquire(1).await.unwrap();
        let waiting = tokio::spawn(async move { other.acquire(1).await.unwrap() });
        eventually("it waits", async || there.usage().channels == 1).await;
        let released = Instant::now();
        held.release().await.unwrap();
        soon("it is woken", waiting).await.unwrap().release().await.unwrap();
        assert!(released.elapsed() < Duration::from_secs(8), "{:?}", released.elapsed());
        assert_eq!(gate.available().await.unwrap(), 1);

        let name = format!("leased:{name}");
        let (gate, other) = (
            here.leased_semaphore(&name, Duration::from_secs(60)),
            there.leased_semaphore(&name, Duration::from_secs(60)),
        );
        assert!(gate.try_set_permits(1).await.unwrap());
        let mut held = gate.acquire(1).await.unwrap();
        held.extend(Duration::from_secs(70)).await.unwrap();
        let waiting = tokio::spawn(async move { other.acquire(1).await.unwrap() });
        eventually("it waits", async || there.usage().channels == 1).await;
        held.release().await.unwrap();
        soon("it is woken", waiting).await.unwrap().release().await.unwrap();
        assert!(released.elapsed() < Duration::from_secs(8), "{:?}", released.elapsed());
        assert_eq!(gate.available().await.unwrap(), 1);
    }
    // A multi-lock of names on several nodes.
    let all = here.multi(["a", "b", "c", "d"]);
    let guard = all.acquire().await.unwrap();
    let some = there.multi(["d", "a"]);
    assert!(some.try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    some.try_acquire().await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_call_cancelled_at_any_point_leaves_nothing() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let (here, there) = (long_locks(&server).await, long_locks(&server).await);
    let gate = semaphore(&here, 2).await;
    let other = there.semaphore(NAME);
    for case in 0..3 {
        cut_everywhere(&format!("case {case}"), async |polls| {
            let completed = match case {
                0 => cut_after(polls, gate.try_acquire(1)).await.map(Result::unwrap).is_some(),
                1 => {
                    let holder = other.acquire(2).await.unwrap();
                    let releasing = released_later(async move { holder.release().await });
                    let got = cut_after(polls, gate.acquire(1)).await.map(Result::unwrap);
                    releasing.await.unwrap();
                    got.is_some()
                }
                _ => {
                    let permits = gate.acquire(2).await.unwrap();
                    cut_after(polls, permits.release()).await.map(Result::unwrap).is_some()
                }
            };
            all_back(&mut raw, &[&here, &there], 2).await;
            completed
        })
        .await;
    }
}

/// A waiter for more permits than there are holds the others of its process up for a while, not for
/// good.
#[tokio::test]
async fn a_waiter_that_asks_for_too_much_does_not_block_the_others() {
    let server = RedisServer::start().await;
    let locks = super::locks(&server).await;
    let gate = semaphore(&locks, 2).await;
    let held = gate.acquire(2).await.unwrap();
    let greedy = tokio::spawn({
        let gate = gate.clone();
        async move { gate.acquire(5).await.map(drop) }
    });
    eventually("it waits", async || locks.usage().channels == 1).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let modest: Vec<_> = (0..3)
        .map(|_| {
            let gate = gate.clone();
            tokio::spawn(async move { gate.acquire(1).await.unwrap().release().await.unwrap() })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    held.release().await.unwrap();
    for waiter in modest {
        super::soon("the others acquire", waiter).await.unwrap();
    }
    // It gets what it asks for once there are as many.
    gate.add_permits(3).await.unwrap();
    super::soon("it acquires all", greedy).await.unwrap().unwrap();
    eventually("all are back", async || gate.available().await == Ok(5)).await;
}

#[tokio::test]
async fn permits_are_split_and_drained() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = long_locks(&server).await;
    let gate = semaphore(&locks, 5).await;
    let mut four = gate.acquire(4).await.unwrap();
    assert!(four.split(5).is_none());
    let three = four.split(3).unwrap();
    let rest = gate.drain().await.unwrap();
    assert_eq!((four.count(), three.count(), rest.count()), (1, 3, 1));
    assert_eq!(gate.drain().await.unwrap().count(), 0);
    three.release().await.unwrap();
    assert_eq!(gate.available().await.unwrap(), 3);
    four.release().await.unwrap();
    assert_eq!(gate.available().await.unwrap(), 4);
    let stats = locks.stats();
    let stats = stats.iter().find(|stats| stats.kind == "semaphore").unwrap();
    assert_eq!((stats.acquired, stats.held_now), (3, 1));
    drop(rest);
    all_back(&mut raw, &[&locks], 5).await;
}
