//! So many permits and never more: what is written, who is let in, and what a lost reply costs.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use redisson_lock::{Error, LockConfig, LockUsage, Locks, Replicas, Semaphore, Server};
use tokio::task::JoinSet;

use super::cancel::{POLLS, cut_after};
use super::wait::script_calls;
use super::{ask, eventually, soon};
use crate::support::proxy::{Mode, Proxy};
use crate::support::redis_cluster::RedisCluster;
use crate::support::redis_server::RedisServer;

const NAME: &str = "gate";
const CHANNEL: &str = "redisson_sc:{gate}";

/// What Redisson's RSemaphore does to give permits: count, and tell the number that are free.
const FOREIGN_RELEASE: &str =
    "redis.call('PUBLISH', KEYS[2], redis.call('INCRBY', KEYS[1], ARGV[1]))";

async fn locks(server: &RedisServer) -> Locks {
    Locks::connect(server.client(), LockConfig::default()).await.expect("connect")
}

/// A semaphore of so many permits.
async fn semaphore(locks: &Locks, permits: u32) -> Semaphore {
    let semaphore = locks.semaphore(NAME).expect("a name");
    assert!(semaphore.try_set_permits(permits).await.expect("set permits"));
    semaphore
}

/// Wait until so many permits are free and nothing else is left but records that expire.
async fn all_back(raw: &mut MultiplexedConnection, locks: &[&Locks], permits: i64) {
    eventually("all permits are back and nobody listens", async || {
        let free: i64 = raw.get(NAME).await.expect("GET");
        assert!(free <= permits, "{free} are free of {permits}");
        let channels: Vec<String> = ask(raw, "PUBSUB", &["CHANNELS"]).await;
        free == permits
            && channels.is_empty()
            && locks.iter().all(|locks| locks.usage() == LockUsage::default())
    })
    .await;
    let keys: Vec<String> = ask(raw, "KEYS", &["*"]).await;
    for key in keys.iter().filter(|key| *key != NAME) {
        assert!(key.starts_with("{gate}:permit:"), "{key}");
        let left: i64 = raw.pttl(key).await.expect("PTTL");
        // It may expire between the two commands.
        assert!(left > 0 || left == -2, "{key}: {left}");
    }
}

/// The next message.
pub async fn told<S: StreamExt<Item = redis::Msg> + Unpin>(messages: &mut S) -> String {
    let message = soon("it is told", messages.next()).await.expect("an open connection");
    String::from_utf8(message.get_payload_bytes().to_vec()).unwrap()
}

#[tokio::test]
async fn it_writes_what_redisson_reads_and_says_what_redisson_hears() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let mut pubsub = server.client().get_async_pubsub().await.unwrap();
    pubsub.subscribe(CHANNEL).await.unwrap();
    let mut messages = pubsub.into_on_message();
    let locks = locks(&server).await;
    let semaphore = locks.semaphore(NAME).unwrap();

    assert!(semaphore.try_acquire(1).await.unwrap().is_none(), "there is no semaphore");
    assert!(semaphore.try_set_permits(5).await.unwrap());
    assert_eq!(raw.get::<_, String>(NAME).await.unwrap(), "5");
    assert_eq!(told(&mut messages).await, "5");
    assert!(!semaphore.try_set_permits(9).await.unwrap(), "it exists");

    let three = semaphore.try_acquire(3).await.unwrap().unwrap();
    assert_eq!((three.count(), raw.get::<_, i64>(NAME).await.unwrap()), (3, 2));
    assert!(semaphore.try_acquire(3).await.unwrap().is_none(), "all or none");
    assert_eq!(semaphore.available().await.unwrap(), 2);
    three.release().await.unwrap();
    assert_eq!(
        (told(&mut messages).await, semaphore.available().await.unwrap()),
        ("5".to_owned(), 5)
    );

    semaphore.add_permits(2).await.unwrap();
    assert_eq!(
        (told(&mut messages).await, semaphore.available().await.unwrap()),
        ("7".to_owned(), 7)
    );
    semaphore.try_acquire(1).await.unwrap().unwrap().forget();
    semaphore.add_permits(-8).await.unwrap();
    assert_eq!(semaphore.available().await.unwrap(), -2);
    // Nobody can be let in, so nobody was told: the next message is the one after.
    semaphore.add_permits(3).await.unwrap();
    assert_eq!(told(&mut messages).await, "1");
    assert_eq!(raw.ttl::<_, i64>(NAME).await.unwrap(), -1);
    semaphore.try_acquire(0).await.unwrap().unwrap().release().await.unwrap();
    drop(messages);
    all_back(&mut raw, &[&locks], 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_more_than_the_permits_are_inside() {
    const PERMITS: u32 = 3;
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let (here, there) = (locks(&server).await, locks(&server).await);
    semaphore(&here, PERMITS).await;
    let (inside, most) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
    let mut tasks = JoinSet::new();
    for number in 0..12u32 {
        let locks = if number % 2 == 0 { &here } else { &there };
        let semaphore = locks.semaphore(NAME).unwrap();
        let (inside, most) = (inside.clone(), most.clone());
        tasks.spawn(async move {
            for round in 0..15 {
                let wanted = 1 + (number + round) % PERMITS;
                let permits = semaphore.acquire(wanted).await.unwrap();
                let now = inside.fetch_add(wanted.into(), Ordering::SeqCst) + i64::from(wanted);
                most.fetch_max(now, Ordering::SeqCst);
                tokio::task::yield_now().await;
                inside.fetch_sub(wanted.into(), Ordering::SeqCst);
                permits.release().await.unwrap();
            }
        });
    }
    while let Some(end) = soon("everybody gets in", tasks.join_next()).await {
        end.unwrap();
    }
    assert_eq!(most.load(Ordering::SeqCst), i64::from(PERMITS));
    all_back(&mut raw, &[&here, &there], PERMITS.into()).await;
}

#[tokio::test]
async fn one_message_about_several_permits_serves_several_waiters() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = locks(&server).await;
    let gate = semaphore(&locks, 0).await;
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        let gate = gate.clone();
        tasks.spawn(async move { gate.acquire(1).await.unwrap() });
    }
    eventually("they wait", async || locks.usage().channels == 1).await;
    // A foreign client gives four at once, and tells once.
    let given = Instant::now();
    let _: () = ask(&mut raw, "EVAL", &[FOREIGN_RELEASE, "2", NAME, CHANNEL, "4"]).await;
    let mut permits = Vec::new();
    while let Some(end) = soon("everybody gets in", tasks.join_next()).await {
        permits.push(end.unwrap());
    }
    // Without being told, they look every ten seconds.
    assert!(given.elapsed() < Duration::from_secs(5), "{:?}", given.elapsed());
    assert!(gate.try_acquire(1).await.unwrap().is_none());
    drop(permits);
    all_back(&mut raw, &[&locks], 4).await;
}

#[tokio::test]
async fn who_wants_many_is_not_passed_by_those_behind() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = locks(&server).await;
    let gate = semaphore(&locks, 1).await;
    // Known scripts, so that every command is one call.
    gate.acquire(1).await.unwrap().release().await.unwrap();
    gate.add_permits(-1).await.unwrap();
    let mut calls = script_calls(&mut raw).await;
    let many = tokio::spawn({
        let gate = gate.clone();
        async move { gate.acquire(3).await.unwrap() }
    });
    // Its second look is made as the first in line.
    calls += 2;
    eventually("it waits", async || script_calls(&mut raw).await == calls).await;
    let one = tokio::spawn({
        let gate = gate.clone();
        async move { gate.acquire(1).await.unwrap() }
    });
    calls += 1;
    eventually("the other has looked once", async || script_calls(&mut raw).await == calls).await;
    for _ in 0..2 {
        gate.add_permits(1).await.unwrap();
        calls += 2;
        eventually("the first has looked", async || script_calls(&mut raw).await >= calls).await;
        assert!(!one.is_finished(), "it passed the one before");
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
async fn a_waiter_is_woken_by_a_release_and_by_the_making() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let (here, there) = (locks(&server).await, locks(&server).await);
    let gate = here.semaphore(NAME).unwrap();
    let waiting = tokio::spawn({
        let gate = gate.clone();
        async move { gate.acquire(1).await.unwrap() }
    });
    eventually("it waits", async || here.usage().channels == 1).await;
    let made = Instant::now();
    assert!(there.semaphore(NAME).unwrap().try_set_permits(1).await.unwrap());
    let held = soon("it is made", waiting).await.unwrap();

    let other = there.semaphore(NAME).unwrap();
    let waiting = tokio::spawn(async move { other.acquire(1).await.unwrap() });
    eventually("it waits", async || there.usage().channels == 1).await;
    held.release().await.unwrap();
    soon("it is given", waiting).await.unwrap().release().await.unwrap();
    assert!(made.elapsed() < Duration::from_secs(8), "{:?}", made.elapsed());
    all_back(&mut raw, &[&here, &there], 1).await;
}

#[tokio::test]
async fn a_limit_is_kept() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = locks(&server).await;
    let gate = semaphore(&locks, 1).await;
    let held = gate.acquire(1).await.unwrap();
    for limit in [Duration::ZERO, Duration::from_millis(200)] {
        let started = Instant::now();
        // The first in line, and one behind.
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
async fn a_lost_reply_neither_takes_nor_gives_twice() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let lossy = Proxy::start(server.address()).await.unwrap();
    let locks = Locks::connect(lossy.redis(), LockConfig::default()).await.unwrap();
    let gate = semaphore(&locks, 5).await;
    // Once without loss, so that the scripts are known and the next reply is the script's.
    gate.acquire(1).await.unwrap().release().await.unwrap();

    lossy.set(Mode::LoseReply);
    let two = gate.try_acquire(2).await.unwrap().expect("they are free");
    assert!(lossy.mode() == Mode::Forward);
    assert_eq!(gate.available().await.unwrap(), 3);
    lossy.set(Mode::LoseReply);
    two.release().await.unwrap();
    assert!(lossy.mode() == Mode::Forward);
    assert_eq!(gate.available().await.unwrap(), 5);
    lossy.set(Mode::LoseReply);
    gate.add_permits(2).await.unwrap();
    assert!(lossy.mode() == Mode::Forward);
    assert_eq!(gate.available().await.unwrap(), 7);

    // What cannot be known is said.
    let _: () = raw.del(NAME).await.unwrap();
    lossy.set(Mode::LoseReply);
    let error = gate.try_set_permits(5).await.unwrap_err();
    assert!(lossy.mode() == Mode::Forward);
    assert!(matches!(error, Error::Unknown { .. }), "{error:?}");
    all_back(&mut raw, &[&locks], 5).await;
}

#[tokio::test]
async fn a_server_that_stands_still_ends_the_call_and_keeps_nothing() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = locks(&server).await;
    let gate = semaphore(&locks, 5).await;
    let held = gate.acquire(1).await.unwrap();
    gate.acquire(1).await.unwrap().release().await.unwrap();
    server.pause();
    let limit = Duration::from_millis(300);
    let started = Instant::now();
    let error = gate.acquire_within(2, limit).await.map(drop).unwrap_err();
    let took = started.elapsed();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(took >= limit && took < limit + Duration::from_millis(600), "{took:?}");
    let error = gate.try_acquire(2).await.map(drop).unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let error = held.release().await.unwrap_err();
    assert!(matches!(error, Error::Unknown { .. }), "{error:?}");
    server.resume();
    all_back(&mut raw, &[&locks], 5).await;
}

#[tokio::test]
async fn what_too_few_replicas_have_is_given_back() {
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
async fn an_acquire_that_comes_after_its_undoing_takes_nothing() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let _: () = raw.set(NAME, 5).await.unwrap();
    let (acquire, give) = (
        include_str!("../../lua/semaphore_acquire.lua"),
        include_str!("../../lua/semaphore_release.lua"),
    );
    let record = "{gate}:permit:1";
    let undo = [give, "2", NAME, record, "2", "60000", "taken", CHANNEL, "PUBLISH"];
    let take = [acquire, "2", NAME, record, "2", "600000"];
    assert_eq!(ask::<i64>(&mut raw, "EVAL", &undo).await, 0);
    assert_eq!(ask::<i64>(&mut raw, "EVAL", &take).await, 0);
    assert_eq!(ask::<i64>(&mut raw, "EVAL", &undo).await, 0);
    assert_eq!(raw.get::<_, i64>(NAME).await.unwrap(), 5);
    // In the right order it takes, and is undone, once each however often it is sent.
    let _: () = raw.del(record).await.unwrap();
    for _ in 0..2 {
        assert_eq!(ask::<i64>(&mut raw, "EVAL", &take).await, 1);
        assert_eq!(raw.get::<_, i64>(NAME).await.unwrap(), 3);
    }
    for _ in 0..2 {
        assert_eq!(ask::<i64>(&mut raw, "EVAL", &undo).await, 1);
        assert_eq!(raw.get::<_, i64>(NAME).await.unwrap(), 5);
    }
}

#[tokio::test]
async fn permits_of_a_semaphore_that_is_gone_are_not_held() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = locks(&server).await;
    let gate = semaphore(&locks, 5).await;
    let (one, two) = (gate.acquire(1).await.unwrap(), gate.acquire(2).await.unwrap());
    let _: () = ask(&mut raw, "FLUSHALL", &[]).await;
    assert_eq!(one.release().await, Err(Error::NotHeld));
    assert!(!raw.exists::<_, bool>(NAME).await.unwrap());
    // Nor do they come on top of the permits of a new one.
    assert!(gate.try_set_permits(5).await.unwrap());
    assert_eq!(two.release().await, Err(Error::NotHeld));
    all_back(&mut raw, &[&locks], 5).await;
}

#[tokio::test]
async fn both_kinds_work_on_every_node_of_a_cluster() {
    let cluster = RedisCluster::start().await;
    let connect = async || {
        let server = Server::cluster(cluster.urls()).unwrap();
        Locks::connect(server, LockConfig::default()).await.expect("connect")
    };
    let (here, there) = (connect().await, connect().await);
    // Names all over the slots; one of them with a hash tag of its own.
    for name in ["gate:1", "gate:2", "gate:3", "gate:4", "gate:{5}:x", "gate:6"] {
        let (gate, other) = (here.semaphore(name).unwrap(), there.semaphore(name).unwrap());
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
            here.leased_semaphore(&name, Duration::from_secs(60)).unwrap(),
            there.leased_semaphore(&name, Duration::from_secs(60)).unwrap(),
        );
        assert!(gate.try_set_permits(1).await.unwrap());
        let mut held = gate.acquire().await.unwrap();
        held.extend(Duration::from_secs(70)).await.unwrap();
        let waiting = tokio::spawn(async move { other.acquire().await.unwrap() });
        eventually("it waits", async || there.usage().channels == 1).await;
        held.release().await.unwrap();
        soon("it is woken", waiting).await.unwrap().release().await.unwrap();
        assert!(released.elapsed() < Duration::from_secs(8), "{:?}", released.elapsed());
        assert_eq!(gate.available().await.unwrap(), 1);
    }
    // A multi-lock of names on several nodes.
    let all = here.multi(["a", "b", "c", "d"]).unwrap();
    let guard = all.acquire(&here.owner()).await.unwrap();
    let some = there.multi(["d", "a"]).unwrap();
    assert!(some.try_acquire(&there.owner()).await.unwrap().is_none());
    guard.release().await.unwrap();
    some.try_acquire(&there.owner()).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn cut_short_anywhere_it_leaves_nothing() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let (here, there) = (locks(&server).await, locks(&server).await);
    let gate = semaphore(&here, 2).await;
    let other = there.semaphore(NAME).unwrap();
    for case in 0..3 {
        let mut completed = false;
        for polls in 0..POLLS {
            completed = match case {
                0 => cut_after(polls, gate.try_acquire(1)).await.map(Result::unwrap).is_some(),
                1 => {
                    let holder = other.acquire(2).await.unwrap();
                    let letting_go = tokio::spawn(async move {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                        holder.release().await.unwrap();
                    });
                    let got = cut_after(polls, gate.acquire(1)).await.map(Result::unwrap);
                    letting_go.await.unwrap();
                    got.is_some()
                }
                _ => {
                    let permits = gate.acquire(2).await.unwrap();
                    cut_after(polls, permits.release()).await.map(Result::unwrap).is_some()
                }
            };
            all_back(&mut raw, &[&here, &there], 2).await;
            if completed {
                assert!(polls > 1, "case {case}: nothing was cut short");
                break;
            }
        }
        assert!(completed, "case {case} never completed within {POLLS} polls");
    }
}
