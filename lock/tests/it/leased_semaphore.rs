//! Permits with ids and leases: what is written, what comes back by itself, and what a lost reply
//! costs.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use redisson_lock::{Error, LeasedSemaphore, LockConfig, LockUsage, Locks, LostReason};
use tokio::task::JoinSet;

use super::cancel::{POLLS, cut_after};
use super::semaphore::told;
use super::{ask, eventually, soon};
use crate::support::proxy::{Mode, Proxy};
use crate::support::redis_server::RedisServer;

const NAME: &str = "gate";
const OUT: &str = "{gate}:timeout";
const CHANNEL: &str = "redisson_sc:{gate}";

/// A lease so long that only giving back can be what frees a permit in time.
const LONG: Duration = Duration::from_secs(60);

/// What Redisson's RPermitExpirableSemaphore does to give a permit back, command by command.
const FOREIGN_RELEASE: &str = "redis.call('ZREM', KEYS[2], redis.call('ZRANGE', KEYS[2], 0, 0)[1])
    redis.call('PUBLISH', KEYS[3], redis.call('INCRBY', KEYS[1], 1))";

/// How many are free and how many are out, at one moment.
const COUNT: &str = "return {tonumber(redis.call('GET', KEYS[1])), redis.call('ZCARD', KEYS[2])}";

async fn locks(server: &RedisServer) -> Locks {
    Locks::connect(server.client(), LockConfig::default()).await.expect("connect")
}

/// A semaphore of so many permits.
async fn semaphore(locks: &Locks, permits: u32, lease: Duration) -> LeasedSemaphore {
    let semaphore = locks.leased_semaphore(NAME, lease).expect("a name");
    assert!(semaphore.try_set_permits(permits).await.expect("set permits"));
    semaphore
}

/// Wait until so many permits are free and nothing else is left.
async fn all_back(raw: &mut MultiplexedConnection, locks: &[&Locks], permits: i64) {
    eventually("all permits are back and nobody listens", async || {
        let (free, out): (i64, i64) = ask(raw, "EVAL", &[COUNT, "2", NAME, OUT]).await;
        let channels: Vec<String> = ask(raw, "PUBSUB", &["CHANNELS"]).await;
        assert!(free + out <= permits, "{free} are free and {out} are out of {permits}");
        (free, out) == (permits, 0)
            && channels.is_empty()
            && locks.iter().all(|locks| locks.usage() == LockUsage::default())
    })
    .await;
}

/// The server's clock, in Unix milliseconds.
async fn now(raw: &mut MultiplexedConnection) -> i64 {
    let (seconds, micros): (i64, i64) = ask(raw, "TIME", &[]).await;
    seconds * 1000 + micros / 1000
}

#[tokio::test]
async fn it_writes_what_redisson_reads_and_says_what_redisson_hears() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let mut pubsub = server.client().get_async_pubsub().await.unwrap();
    pubsub.subscribe(CHANNEL).await.unwrap();
    let mut messages = pubsub.into_on_message();
    let locks = locks(&server).await;
    let gate = semaphore(&locks, 2, LONG).await;
    assert_eq!(told(&mut messages).await, "2");

    let before = now(&mut raw).await;
    let permit = gate.try_acquire().await.unwrap().expect("it is free");
    let after = now(&mut raw).await;
    assert_eq!(raw.get::<_, String>(NAME).await.unwrap(), "1");
    let out: Vec<(Vec<u8>, i64)> = raw.zrange_withscores(OUT, 0, -1).await.unwrap();
    let [(id, expires)] = out.try_into().expect("one permit is out");
    let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!((id.len(), hex), (16, permit.id()));
    assert!((before..=after).contains(&(expires - 60_000)), "{before} {expires} {after}");
    assert!(permit.valid_for() <= LONG && permit.valid_for() > LONG / 2);
    permit.release().await.unwrap();
    assert_eq!(told(&mut messages).await, "2");
    assert_eq!(raw.exists::<_, i64>(OUT).await.unwrap(), 0);

    // The whole semaphore's expiry, which Redisson can set, holds for the permits too.
    let _: bool = raw.pexpire(NAME, 50_000).await.unwrap();
    let permit = gate.try_acquire().await.unwrap().unwrap();
    let left: i64 = raw.pttl(OUT).await.unwrap();
    assert!(left > 0 && left <= 50_000, "{left}");
    permit.release().await.unwrap();
    drop(messages);
    all_back(&mut raw, &[&locks], 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_more_than_the_permits_are_inside() {
    const PERMITS: i64 = 3;
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let (here, there) = (locks(&server).await, locks(&server).await);
    semaphore(&here, 3, LONG).await;
    let (inside, most) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
    let mut tasks = JoinSet::new();
    for number in 0..12 {
        let locks = if number % 2 == 0 { &here } else { &there };
        let gate = locks.leased_semaphore(NAME, LONG).unwrap();
        let (inside, most) = (inside.clone(), most.clone());
        tasks.spawn(async move {
            for _ in 0..15 {
                let permit = gate.acquire().await.unwrap();
                most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                permit.release().await.unwrap();
            }
        });
    }
    while let Some(end) = soon("everybody gets in", tasks.join_next()).await {
        end.unwrap();
    }
    assert_eq!(most.load(Ordering::SeqCst), PERMITS);
    all_back(&mut raw, &[&here, &there], PERMITS).await;
}

#[tokio::test]
async fn a_foreign_clients_release_wakes_a_waiter() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = locks(&server).await;
    let gate = semaphore(&locks, 0, LONG).await;
    // For ever, as Redisson writes it where no lease is given.
    let _: () = raw.zadd(OUT, "a client's", 922_337_203_685_477i64).await.unwrap();
    let waiting = tokio::spawn(async move { gate.acquire().await.unwrap() });
    eventually("it waits", async || locks.usage().channels == 1).await;
    let given = Instant::now();
    let _: () = ask(&mut raw, "EVAL", &[FOREIGN_RELEASE, "3", NAME, OUT, CHANNEL]).await;
    let permit = soon("it is woken", waiting).await.unwrap();
    assert!(given.elapsed() < Duration::from_secs(5), "{:?}", given.elapsed());
    permit.release().await.unwrap();
    all_back(&mut raw, &[&locks], 1).await;
}

#[tokio::test]
async fn permits_of_a_crashed_holder_come_back_without_a_message() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = locks(&server).await;
    let gate = semaphore(&locks, 0, LONG).await;
    let expires = now(&mut raw).await + 700;
    let _: () = raw.zadd(OUT, "one of a client that crashed", expires).await.unwrap();
    let _: () = raw.zadd(OUT, "another", expires).await.unwrap();
    let started = Instant::now();
    let (first, second) =
        soon("the leases end", async { tokio::join!(gate.acquire(), gate.acquire()) }).await;
    let took = started.elapsed();
    // Without knowing when, they look every ten seconds.
    assert!(took > Duration::from_millis(400) && took < Duration::from_secs(5), "{took:?}");
    assert!(gate.try_acquire().await.unwrap().is_none());
    drop((first, second));
    all_back(&mut raw, &[&locks], 2).await;
}

#[tokio::test]
async fn a_lease_ends_and_is_extended() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = locks(&server).await;
    let lease = Duration::from_millis(500);
    let gate = semaphore(&locks, 1, lease).await;

    let mut permit = gate.acquire().await.unwrap();
    permit.extend(LONG).await.unwrap();
    assert!(permit.valid_for() > LONG / 2);
    tokio::time::sleep(lease * 2).await;
    assert_eq!(gate.available().await.unwrap(), 0);
    assert!(gate.try_acquire().await.unwrap().is_none(), "it was extended");
    permit.extend(Duration::from_millis(20)).await.unwrap();
    assert!(permit.valid_for() <= Duration::from_millis(20));

    let next = soon("the lease ends", gate.acquire()).await.unwrap();
    assert_eq!(permit.valid_for(), Duration::ZERO);
    assert_eq!(permit.extend(LONG).await, Err(Error::Lost(LostReason::Expired)));
    // Given back too late, it gives nothing.
    assert_eq!(permit.release().await, Err(Error::Lost(LostReason::Expired)));
    assert_eq!(raw.get::<_, i64>(NAME).await.unwrap(), 0);
    // Expired and not yet collected, it is given back once.
    tokio::time::sleep(lease + Duration::from_millis(50)).await;
    assert_eq!(gate.available().await.unwrap(), 1);
    assert_eq!(next.release().await, Err(Error::Lost(LostReason::Expired)));
    all_back(&mut raw, &[&locks], 1).await;
}

#[tokio::test]
async fn a_lost_reply_neither_takes_nor_gives_twice() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let lossy = Proxy::start(server.address()).await.unwrap();
    let locks = Locks::connect(lossy.redis(), LockConfig::default()).await.unwrap();
    let gate = semaphore(&locks, 3, LONG).await;
    // Once without loss, so that the scripts are known and the next reply is the script's.
    gate.acquire().await.unwrap().release().await.unwrap();
    lossy.set(Mode::LoseReply);
    let permit = gate.try_acquire().await.unwrap().expect("it is free");
    assert!(lossy.mode() == Mode::Forward);
    assert_eq!(gate.available().await.unwrap(), 2);
    lossy.set(Mode::LoseReply);
    permit.release().await.unwrap();
    assert!(lossy.mode() == Mode::Forward);
    assert_eq!(gate.available().await.unwrap(), 3);
    all_back(&mut raw, &[&locks], 3).await;
}

#[tokio::test]
async fn a_server_that_stands_still_ends_the_call_and_keeps_nothing() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = locks(&server).await;
    let gate = semaphore(&locks, 3, LONG).await;
    let held = gate.acquire().await.unwrap();
    gate.acquire().await.unwrap().release().await.unwrap();
    server.pause();
    let limit = Duration::from_millis(300);
    let started = Instant::now();
    let error = gate.acquire_within(limit).await.map(drop).unwrap_err();
    let took = started.elapsed();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(took >= limit && took < limit + Duration::from_millis(600), "{took:?}");
    let error = held.release().await.unwrap_err();
    assert!(matches!(error, Error::Unknown { .. }), "{error:?}");
    server.resume();
    all_back(&mut raw, &[&locks], 3).await;
}

#[tokio::test]
async fn cut_short_anywhere_it_leaves_nothing() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let (here, there) = (locks(&server).await, locks(&server).await);
    let gate = semaphore(&here, 1, LONG).await;
    let other = there.leased_semaphore(NAME, LONG).unwrap();
    for case in 0..4 {
        let mut completed = false;
        for polls in 0..POLLS {
            completed = match case {
                0 => cut_after(polls, gate.try_acquire()).await.map(Result::unwrap).is_some(),
                1 => {
                    let holder = other.acquire().await.unwrap();
                    let letting_go = tokio::spawn(async move {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                        holder.release().await.unwrap();
                    });
                    let got = cut_after(polls, gate.acquire()).await.map(Result::unwrap);
                    letting_go.await.unwrap();
                    got.is_some()
                }
                2 => {
                    let mut permit = gate.acquire().await.unwrap();
                    cut_after(polls, permit.extend(LONG)).await.map(Result::unwrap).is_some()
                }
                _ => {
                    let permit = gate.acquire().await.unwrap();
                    cut_after(polls, permit.release()).await.map(Result::unwrap).is_some()
                }
            };
            all_back(&mut raw, &[&here, &there], 1).await;
            if completed {
                assert!(polls > 1, "case {case}: nothing was cut short");
                break;
            }
        }
        assert!(completed, "case {case} never completed within {POLLS} polls");
    }
}
