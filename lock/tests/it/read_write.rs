//! The read-write lock: its shape on the wire, who excludes whom, who is woken.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use redisson_lock::{Error, LockConfig, Locks};

use super::{LEASE, ask, eventually, locks, nothing_left, soon};
use crate::support::redis_server::RedisServer;

const NAME: &str = "catalogue";
const CHANNEL: &str = "redisson_rwlock:{catalogue}";

async fn hash(raw: &mut MultiplexedConnection) -> BTreeMap<String, String> {
    raw.hgetall(NAME).await.unwrap()
}

fn fields<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
}

#[tokio::test]
async fn every_step_is_redissons() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let (mut sink, mut messages) = server.client().get_async_pubsub().await.unwrap().split();
    sink.subscribe(CHANNEL).await.unwrap();
    let locks = Locks::connect(server.client(), LockConfig::default()).await.unwrap();
    let lock = locks.read_write(NAME).unwrap();
    let (me, you) = (locks.owner(), locks.owner());
    let (my, your) = (me.to_string(), you.to_string());
    let my_hold = |n: u32| format!("{{catalogue}}:{my}:rwlock_timeout:{n}");
    let full = 20_000..=30_000;

    // Two holds of one reader, one of another.
    let first = lock.read().acquire(&me).await.unwrap();
    assert_eq!(hash(&mut raw).await, fields([("mode", "read"), (&my, "1")]));
    assert_eq!(raw.get::<_, String>(my_hold(1)).await.unwrap(), "1");
    assert!(full.contains(&raw.pttl::<_, i64>(my_hold(1)).await.unwrap()));
    assert!(full.contains(&raw.pttl::<_, i64>(NAME).await.unwrap()));
    let second = lock.read().acquire(&me).await.unwrap();
    let other = lock.read().acquire(&you).await.unwrap();
    let expected = fields([("mode", "read"), (&my, "2"), (&your, "1")]);
    assert_eq!(hash(&mut raw).await, expected);
    assert!(full.contains(&raw.pttl::<_, i64>(my_hold(2)).await.unwrap()));
    let keys: Vec<String> = ask(&mut raw, "KEYS", &["*"]).await;
    assert_eq!(keys.len(), 4, "{keys:?}");

    first.release().await.unwrap();
    assert_eq!(hash(&mut raw).await, fields([("mode", "read"), (&my, "1"), (&your, "1")]));
    assert!(!raw.exists::<_, bool>(my_hold(2)).await.unwrap());
    second.release().await.unwrap();
    assert_eq!(hash(&mut raw).await, fields([("mode", "read"), (&your, "1")]));
    assert!(full.contains(&raw.pttl::<_, i64>(NAME).await.unwrap()));
    other.release().await.unwrap();
    let keys: Vec<String> = ask(&mut raw, "KEYS", &["*"]).await;
    assert!(keys.is_empty(), "{keys:?}");

    // A writer that reads as well, and goes on reading.
    let writer = format!("{me}:write");
    let writing = lock.write().acquire(&me).await.unwrap();
    let again = lock.write().acquire(&me).await.unwrap();
    assert_eq!(hash(&mut raw).await, fields([("mode", "write"), (&writer, "2")]));
    again.release().await.unwrap();
    let reading = lock.read().acquire(&me).await.unwrap();
    let expected = fields([("mode", "write"), (&writer, "1"), (&my, "1")]);
    assert_eq!(hash(&mut raw).await, expected);
    assert!(lock.read().is_locked().await.unwrap() && lock.write().is_locked().await.unwrap());
    writing.release().await.unwrap();
    assert_eq!(hash(&mut raw).await, fields([("mode", "read"), (&my, "1")]));
    assert!(lock.read().is_locked().await.unwrap() && !lock.write().is_locked().await.unwrap());
    reading.release().await.unwrap();

    // Reading ends before writing does.
    let writing = lock.write().acquire(&me).await.unwrap();
    let reading = lock.read().acquire(&me).await.unwrap();
    reading.release().await.unwrap();
    assert_eq!(hash(&mut raw).await, fields([("mode", "write"), (&writer, "1")]));
    writing.release().await.unwrap();

    // Each side is freed by force alone.
    let kept = lock.read().acquire(&me).await.unwrap();
    assert!(!lock.write().force_unlock().await.unwrap());
    assert!(lock.read().force_unlock().await.unwrap());
    assert_eq!(kept.release().await, Err(Error::NotHeld));
    let kept = lock.write().acquire(&me).await.unwrap();
    assert!(!lock.read().force_unlock().await.unwrap());
    assert!(lock.write().force_unlock().await.unwrap());
    assert_eq!(kept.release().await, Err(Error::NotHeld));

    // The last reader lets one look; a writer lets all look, also when it goes on reading.
    let _: i64 = raw.publish(CHANNEL, "end").await.unwrap();
    for expected in ["0", "1", "0", "1", "0", "1", "end"] {
        let message = soon("a message", messages.next()).await.unwrap();
        assert_eq!(message.get_payload_bytes(), expected.as_bytes());
    }
    drop((sink, messages));
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn a_name_with_braces_keeps_them() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = locks(&server).await;
    let me = locks.owner();
    let guard = locks.read_write("a:{7}:b").unwrap().read().acquire(&me).await.unwrap();
    let mut keys: Vec<String> = ask(&mut raw, "KEYS", &["*"]).await;
    keys.sort();
    assert_eq!(keys, ["a:{7}:b".to_owned(), format!("a:{{7}}:b:{me}:rwlock_timeout:1")]);
    drop(guard);
}

#[tokio::test]
async fn readers_share_and_writers_exclude() {
    let server = RedisServer::start().await;
    let (here, there) = (locks(&server).await, locks(&server).await);
    let (a, b) = (here.read_write(NAME).unwrap(), there.read_write(NAME).unwrap());
    let (me, you, third) = (here.owner(), there.owner(), there.owner());

    let mine = a.read().acquire(&me).await.unwrap();
    let yours = b.read().try_acquire(&you).await.unwrap().expect("readers share");
    assert!(b.write().try_acquire(&third).await.unwrap().is_none());
    // Who reads cannot write as well: it would wait for itself.
    let waiting = soon("an upgrade is refused", a.write().acquire(&me)).await.map(Some);
    for upgrade in [a.write().try_acquire(&me).await, waiting] {
        assert!(matches!(upgrade, Err(Error::OtherKind { .. })), "{upgrade:?}");
    }
    mine.release().await.unwrap();
    assert!(a.write().try_acquire(&me).await.unwrap().is_none());
    yours.release().await.unwrap();

    let writing = a.write().try_acquire(&me).await.unwrap().expect("nobody is left");
    assert!(b.read().try_acquire(&you).await.unwrap().is_none());
    assert!(b.write().try_acquire(&you).await.unwrap().is_none());
    let reading = a.read().try_acquire(&me).await.unwrap().expect("who writes may read");
    writing.release().await.unwrap();
    assert!(b.write().try_acquire(&you).await.unwrap().is_none());
    let yours = b.read().try_acquire(&you).await.unwrap().expect("nobody writes any more");
    reading.release().await.unwrap();
    yours.release().await.unwrap();
    nothing_left(&server, &[&here, &there]).await;
}

/// The other reader keeps the hash alive, so only the keys of the holds tell who still lives.
#[tokio::test]
async fn a_reader_that_died_keeps_no_writer_out() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = locks(&server).await;
    let lock = locks.read_write(NAME).unwrap();
    let living = lock.read().acquire(&locks.owner()).await.unwrap();
    let died = lock.read().clone().with_lease(Duration::from_millis(100));
    let died = died.acquire(&locks.owner()).await.unwrap();
    soon("its lease ends", died.lost()).await;
    let hold = format!("{{catalogue}}:{}:rwlock_timeout:1", died.owner());
    eventually("its hold is gone", async || !raw.exists::<_, bool>(&hold).await.unwrap()).await;
    assert!(raw.hexists::<_, _, bool>(NAME, died.owner().to_string()).await.unwrap());
    assert!(lock.write().try_acquire(&locks.owner()).await.unwrap().is_none());
    living.release().await.unwrap();
    lock.write()
        .try_acquire(&locks.owner())
        .await
        .unwrap()
        .expect("nobody lives")
        .release()
        .await
        .unwrap();
    drop(died);
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn a_short_reader_takes_nothing_from_a_long_one() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = locks(&server).await;
    let lock = locks.read_write(NAME).unwrap();
    let long = lock.read().clone().with_lease(Duration::from_secs(60));
    let long = long.acquire(&locks.owner()).await.unwrap();
    let short = lock.read().acquire(&locks.owner()).await.unwrap();
    tokio::time::sleep(LEASE).await;
    assert!(raw.pttl::<_, i64>(NAME).await.unwrap() > 50_000, "a renewal shortened it");
    short.release().await.unwrap();
    assert!(raw.pttl::<_, i64>(NAME).await.unwrap() > 50_000, "a release shortened it");
    assert!(long.valid_for() > Duration::from_secs(50));
    long.release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}

/// Locks whose lease is so long that only a message can wake anybody in time.
async fn slow(server: &RedisServer) -> Locks {
    Locks::connect(server.client(), LockConfig::default()).await.unwrap()
}

/// Wait until so many subscribers listen and `tries` acquires have been made since the last reset.
async fn asleep(raw: &mut MultiplexedConnection, tries: i64) {
    eventually("all sleep", async || {
        let stats: String = ask(raw, "INFO", &["commandstats"]).await;
        let calls = |name: &str| {
            let line = stats.lines().find(|line| line.starts_with(name));
            let calls = line.and_then(|line| line.split_once("calls=")?.1.split(',').next());
            calls.map_or(0, |calls| calls.parse::<i64>().unwrap())
        };
        calls("cmdstat_evalsha:") == tries
    })
    .await;
}

#[tokio::test]
async fn a_writer_that_leaves_lets_all_readers_in() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let (here, there) = (slow(&server).await, slow(&server).await);
    // The scripts are loaded, so that every try is one call.
    let warm = here.read_write("other").unwrap();
    warm.read().acquire(&here.owner()).await.unwrap().release().await.unwrap();
    for foreign in [false, true] {
        let writing = here.read_write(NAME).unwrap().write().acquire(&here.owner()).await.unwrap();
        let _: () = ask(&mut raw, "CONFIG", &["RESETSTAT"]).await;
        // All stay until the last is in: if only one were woken, the others would not be.
        let inside = std::sync::Arc::new(tokio::sync::Barrier::new(10));
        let readers: Vec<_> = (0..10)
            .map(|_| {
                let (lock, me) = (there.read_write(NAME).unwrap(), there.owner());
                let inside = inside.clone();
                tokio::spawn(async move {
                    let guard = lock.read().acquire(&me).await.unwrap();
                    inside.wait().await;
                    guard.release().await.unwrap();
                })
            })
            .collect();
        asleep(&mut raw, 20).await;
        let left = Instant::now();
        if foreign {
            // As a Redisson client does it.
            let _: () = raw.del(NAME).await.unwrap();
            let _: i64 = raw.publish(CHANNEL, "1").await.unwrap();
            drop(writing);
        } else {
            writing.release().await.unwrap();
        }
        for reader in readers {
            soon("every reader gets in", reader).await.unwrap();
        }
        assert!(left.elapsed() < Duration::from_secs(5), "{:?}", left.elapsed());
        nothing_left(&server, &[&here, &there]).await;
    }
}

#[tokio::test]
async fn readers_are_let_in_when_a_writer_goes_on_reading() {
    let server = RedisServer::start().await;
    let (here, there) = (slow(&server).await, slow(&server).await);
    let (lock, me) = (here.read_write(NAME).unwrap(), here.owner());
    let writing = lock.write().acquire(&me).await.unwrap();
    let reading = lock.read().acquire(&me).await.unwrap();
    let waiting = tokio::spawn({
        let (lock, you) = (there.read_write(NAME).unwrap(), there.owner());
        async move { lock.read().acquire(&you).await.unwrap().release().await.unwrap() }
    });
    eventually("it waits", async || there.usage().channels == 1).await;
    let mut raw = server.conn().await;
    let heard = async || {
        let (_, count): (String, i64) = ask(&mut raw, "PUBSUB", &["NUMSUB", CHANNEL]).await;
        count == 1
    };
    eventually("it listens", heard).await;
    writing.release().await.unwrap();
    soon("the reader gets in", waiting).await.unwrap();
    reading.release().await.unwrap();
    nothing_left(&server, &[&here, &there]).await;
}

#[tokio::test]
async fn the_last_reader_lets_a_writer_in() {
    let server = RedisServer::start().await;
    let (here, there) = (slow(&server).await, slow(&server).await);
    let lock = here.read_write(NAME).unwrap();
    let one = lock.read().acquire(&here.owner()).await.unwrap();
    let two = lock.read().acquire(&here.owner()).await.unwrap();
    let waiting = tokio::spawn({
        let (lock, you) = (there.read_write(NAME).unwrap(), there.owner());
        async move { lock.write().acquire(&you).await.unwrap().release().await.unwrap() }
    });
    eventually("it waits", async || there.usage().channels == 1).await;
    one.release().await.unwrap();
    assert!(!waiting.is_finished());
    two.release().await.unwrap();
    soon("the writer gets in", waiting).await.unwrap();
    nothing_left(&server, &[&here, &there]).await;
}

/// Two numbers in Redis that a writer changes one after the other and readers find equal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_reader_sees_half_a_write() {
    let server = RedisServer::start().await;
    let both = [locks(&server).await, locks(&server).await];
    let mut tasks = Vec::new();
    for i in 0..12 {
        let (locks, mut raw) = (both[i % 2].clone(), server.conn().await);
        tasks.push(tokio::spawn(async move {
            let lock = locks.read_write(NAME).unwrap();
            for _ in 0..10 {
                let me = locks.owner();
                if i % 3 == 0 {
                    let guard = lock.write().acquire(&me).await.unwrap();
                    let seen: u32 = raw.get("a").await.unwrap_or(0);
                    let _: () = raw.set("a", seen + 1).await.unwrap();
                    let _: () = raw.set("b", seen + 1).await.unwrap();
                    guard.release().await.unwrap();
                } else {
                    let guard = lock.read().acquire(&me).await.unwrap();
                    let a: Option<u32> = raw.get("a").await.unwrap();
                    let b: Option<u32> = raw.get("b").await.unwrap();
                    assert_eq!(a, b);
                    guard.release().await.unwrap();
                }
            }
        }));
    }
    for task in tasks {
        soon("no task is stuck", task).await.unwrap();
    }
    let mut raw = server.conn().await;
    assert_eq!(raw.get::<_, u32>("a").await.unwrap(), 40, "an update was lost");
    let _: i64 = ask(&mut raw, "DEL", &["a", "b"]).await;
    nothing_left(&server, &[&both[0], &both[1]]).await;
}
