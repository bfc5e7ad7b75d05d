//! The read-write lock: wire format, exclusion between readers and writers, wake-ups.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use redisson_lock::{Error, LostReason};

use super::{
    LEASE, LONG_LEASE, calls_of, eventually, messages, next_message, nothing_left, query, renewed,
    soon, start, subscribers, wait_for,
};

const NAME: &str = "catalogue";
const CHANNEL: &str = "redisson_rwlock:{catalogue}";

async fn hash(raw: &mut MultiplexedConnection) -> BTreeMap<String, String> {
    raw.hgetall(NAME).await.unwrap()
}

fn fields<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs
        .into_iter()
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect()
}

#[tokio::test]
async fn the_wire_format_is_that_of_redisson() {
    let (server, mut raw, [locks]) = start(LONG_LEASE).await;
    let mut messages = messages(&server, CHANNEL).await;
    let lock = locks.read_write(NAME);
    let owner = locks.owner();
    let other_owner = locks.owner();
    let field = owner.to_string();
    let other_field = other_owner.to_string();
    let hold_key = |n: u32| format!("{{catalogue}}:{field}:rwlock_timeout:{n}");
    let full = 90_000..=120_000;

    // Two holds of one reader, one of another.
    let first = lock.read().acquire_as(&owner).await.unwrap();
    assert_eq!(
        hash(&mut raw).await,
        fields([("mode", "read"), (&field, "1")])
    );
    assert_eq!(raw.get::<_, String>(hold_key(1)).await.unwrap(), "1");
    assert!(full.contains(&raw.pttl::<_, i64>(hold_key(1)).await.unwrap()));
    assert!(full.contains(&raw.pttl::<_, i64>(NAME).await.unwrap()));
    let second = lock.read().acquire_as(&owner).await.unwrap();
    let third = lock.read().acquire_as(&other_owner).await.unwrap();
    let expected = fields([("mode", "read"), (&field, "2"), (&other_field, "1")]);
    assert_eq!(hash(&mut raw).await, expected);
    assert!(full.contains(&raw.pttl::<_, i64>(hold_key(2)).await.unwrap()));
    let keys: Vec<String> = query(&mut raw, "KEYS", &["*"]).await;
    assert_eq!(keys.len(), 4, "{keys:?}");

    first.release().await.unwrap();
    assert_eq!(
        hash(&mut raw).await,
        fields([("mode", "read"), (&field, "1"), (&other_field, "1")])
    );
    assert!(!raw.exists::<_, bool>(hold_key(2)).await.unwrap());
    second.release().await.unwrap();
    assert_eq!(
        hash(&mut raw).await,
        fields([("mode", "read"), (&other_field, "1")])
    );
    assert!(full.contains(&raw.pttl::<_, i64>(NAME).await.unwrap()));
    third.release().await.unwrap();
    let keys: Vec<String> = query(&mut raw, "KEYS", &["*"]).await;
    assert!(keys.is_empty(), "{keys:?}");

    // A writer that reads as well, and goes on reading.
    let writer = format!("{owner}:write");
    let writing = lock.write().acquire_as(&owner).await.unwrap();
    let again = lock.write().acquire_as(&owner).await.unwrap();
    assert_eq!(
        hash(&mut raw).await,
        fields([("mode", "write"), (&writer, "2")])
    );
    assert!(!lock.read().is_locked().await.unwrap() && lock.write().is_locked().await.unwrap());
    again.release().await.unwrap();
    let reading = lock.read().acquire_as(&owner).await.unwrap();
    let expected = fields([("mode", "write"), (&writer, "1"), (&field, "1")]);
    assert_eq!(hash(&mut raw).await, expected);
    assert!(lock.read().is_locked().await.unwrap() && lock.write().is_locked().await.unwrap());
    writing.release().await.unwrap();
    assert_eq!(
        hash(&mut raw).await,
        fields([("mode", "read"), (&field, "1")])
    );
    assert!(lock.read().is_locked().await.unwrap() && !lock.write().is_locked().await.unwrap());
    reading.release().await.unwrap();

    // Reading ends before writing does.
    let writing = lock.write().acquire_as(&owner).await.unwrap();
    let reading = lock.read().acquire_as(&owner).await.unwrap();
    reading.release().await.unwrap();
    assert_eq!(
        hash(&mut raw).await,
        fields([("mode", "write"), (&writer, "1")])
    );
    writing.release().await.unwrap();

    // The read lock and the write lock are force-unlocked separately.
    let held = lock.read().acquire_as(&owner).await.unwrap();
    assert!(!lock.write().force_unlock().await.unwrap());
    assert!(lock.read().force_unlock().await.unwrap());
    assert_eq!(held.release().await, Err(Error::Lost(LostReason::Expired)));
    let held = lock.write().acquire_as(&owner).await.unwrap();
    assert!(!lock.read().force_unlock().await.unwrap());
    assert!(lock.write().force_unlock().await.unwrap());
    assert_eq!(held.release().await, Err(Error::Lost(LostReason::Expired)));

    // The last reader wakes one waiter (0); a writer wakes all (1), also when it keeps a read lock.
    let _: i64 = raw.publish(CHANNEL, "end").await.unwrap();
    for expected in ["0", "1", "0", "1", "0", "1", "end"] {
        assert_eq!(next_message(&mut messages).await, expected);
    }
    drop(messages);
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn readers_share_and_writers_exclude() {
    let (server, _, [first_locks, second_locks]) = start(LEASE).await;
    let a = first_locks.read_write(NAME);
    let b = second_locks.read_write(NAME);
    let owner = first_locks.owner();
    let other_owner = second_locks.owner();
    let third_owner = second_locks.owner();

    let first = a.read().acquire_as(&owner).await.unwrap();
    let second = b
        .read()
        .try_acquire_as(&other_owner)
        .await
        .unwrap()
        .expect("readers share");
    assert!(
        b.write()
            .try_acquire_as(&third_owner)
            .await
            .unwrap()
            .is_none()
    );
    // A reader cannot upgrade: it would wait for itself.
    fails_as!(
        soon("an upgrade is refused", a.write().acquire_as(&owner)).await,
        OtherKind
    );
    fails_as!(a.write().try_acquire_as(&owner).await, OtherKind);
    first.release().await.unwrap();
    assert!(a.write().try_acquire_as(&owner).await.unwrap().is_none());
    second.release().await.unwrap();

    let writing = a
        .write()
        .try_acquire_as(&owner)
        .await
        .unwrap()
        .expect("it is free");
    assert!(
        b.read()
            .try_acquire_as(&other_owner)
            .await
            .unwrap()
            .is_none()
    );
    assert!(
        b.write()
            .try_acquire_as(&other_owner)
            .await
            .unwrap()
            .is_none()
    );
    let reading = a
        .read()
        .try_acquire_as(&owner)
        .await
        .unwrap()
        .expect("a writer may read");
    writing.release().await.unwrap();
    assert!(
        b.write()
            .try_acquire_as(&other_owner)
            .await
            .unwrap()
            .is_none()
    );
    let second = b
        .read()
        .try_acquire_as(&other_owner)
        .await
        .unwrap()
        .expect("the write lock is released");
    reading.release().await.unwrap();
    second.release().await.unwrap();
    nothing_left(&server, &[&first_locks, &second_locks]).await;
}

/// The other reader keeps the hash alive, so only the timeout keys of the holds show which are valid.
#[tokio::test]
async fn an_expired_reader_does_not_block_a_writer() {
    let (server, mut raw, [locks]) = start(LEASE).await;
    let lock = locks.read_write(NAME);
    let live = lock.read().acquire().await.unwrap();
    let expired = lock
        .read()
        .clone()
        .without_renewal(Duration::from_millis(100));
    let expired = expired.acquire().await.unwrap();
    soon("its lease ends", expired.lost()).await;
    let hold = format!("{{catalogue}}:{}:rwlock_timeout:1", expired.owner());
    eventually("its timeout key is gone", async || {
        !raw.exists::<_, bool>(&hold).await.unwrap()
    })
    .await;
    assert!(
        raw.hexists::<_, _, bool>(NAME, expired.owner().to_string())
            .await
            .unwrap()
    );
    assert!(lock.write().try_acquire().await.unwrap().is_none());
    live.release().await.unwrap();
    lock.write()
        .try_acquire()
        .await
        .unwrap()
        .expect("no reader is left")
        .release()
        .await
        .unwrap();
    drop(expired);
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn a_short_lease_does_not_shorten_the_lease_of_another_reader() {
    let (server, mut raw, [locks]) = start(LEASE).await;
    let lock = locks.read_write(NAME);
    let long = lock.read().clone().without_renewal(Duration::from_secs(60));
    let long = long.acquire().await.unwrap();
    let short = lock.read().acquire().await.unwrap();
    let last = lock.read().acquire().await.unwrap();
    renewed(|| short.valid_for()).await;
    assert!(
        raw.pttl::<_, i64>(NAME).await.unwrap() > 50_000,
        "a renewal shortened it"
    );
    // After the first release the longest lease is that of the first field; after the second, of the only field.
    for reader in [short, last] {
        reader.release().await.unwrap();
        assert!(
            raw.pttl::<_, i64>(NAME).await.unwrap() > 50_000,
            "a release shortened it"
        );
    }
    assert!(long.valid_for() > Duration::from_secs(50));
    long.release().await.unwrap();
    // Nor does a writer that reads as well shorten its own.
    let long = lock
        .write()
        .clone()
        .without_renewal(Duration::from_secs(60));
    let writing = long.acquire().await.unwrap();
    let read = lock
        .read()
        .clone()
        .without_renewal(Duration::from_millis(50));
    drop(read.acquire_as(writing.owner()).await.unwrap());
    assert!(long.remaining().await.unwrap().unwrap() > Duration::from_secs(50));
    assert!(writing.valid_for() > Duration::from_secs(50));
    writing.release().await.unwrap();
    // Nor does the end of a write hold shorten the lease with which the same owner reads.
    let owner = locks.owner();
    let outer = lock.write().acquire_as(&owner).await.unwrap();
    let inner = lock.write().acquire_as(&owner).await.unwrap();
    let long = lock.read().clone().without_renewal(Duration::from_secs(60));
    let reading = long.acquire_as(&owner).await.unwrap();
    for writing in [inner, outer] {
        writing.release().await.unwrap();
        assert!(long.remaining().await.unwrap().unwrap() > Duration::from_secs(50));
    }
    reading.release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn a_writers_release_wakes_all_readers() {
    let (server, mut raw, [writer_locks, reader_locks]) = start(LONG_LEASE).await;
    // With the scripts loaded, every attempt is one call; each reader makes two.
    let warm = writer_locks.read_write("other");
    warm.read()
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    for foreign in [false, true] {
        let writing = writer_locks
            .read_write(NAME)
            .write()
            .acquire()
            .await
            .unwrap();
        let _: () = query(&mut raw, "CONFIG", &["RESETSTAT"]).await;
        // All hold the lock until the last has it: were only one woken, the barrier would not open.
        let all_reading = std::sync::Arc::new(tokio::sync::Barrier::new(10));
        let readers: Vec<_> = (0..10)
            .map(|_| {
                let lock = reader_locks.read_write(NAME);
                let owner = reader_locks.owner();
                let all_reading = all_reading.clone();
                tokio::spawn(async move {
                    let guard = lock.read().acquire_as(&owner).await.unwrap();
                    all_reading.wait().await;
                    guard.release().await.unwrap();
                })
            })
            .collect();
        eventually("all sleep", async || {
            calls_of(&mut raw, "evalsha").await == 20
        })
        .await;
        let released = Instant::now();
        if foreign {
            // As a Redisson client does it.
            let _: () = raw.del(NAME).await.unwrap();
            let _: i64 = raw.publish(CHANNEL, "1").await.unwrap();
            drop(writing);
        } else {
            writing.release().await.unwrap();
        }
        for reader in readers {
            soon("every reader acquires the lock", reader)
                .await
                .unwrap();
        }
        assert!(
            released.elapsed() < Duration::from_secs(5),
            "{:?}",
            released.elapsed()
        );
        nothing_left(&server, &[&writer_locks, &reader_locks]).await;
    }
}

#[tokio::test]
async fn readers_are_woken_when_a_writer_downgrades() {
    let (server, _, [holder_locks, waiter_locks]) = start(LONG_LEASE).await;
    let lock = holder_locks.read_write(NAME);
    let owner = holder_locks.owner();
    let writing = lock.write().acquire_as(&owner).await.unwrap();
    let reading = lock.read().acquire_as(&owner).await.unwrap();
    let waiting = wait_for(waiter_locks.read_write(NAME).read());
    eventually("it waits", async || waiter_locks.usage().channels == 1).await;
    let mut raw = server.conn().await;
    eventually("it is subscribed", async || {
        subscribers(&mut raw, CHANNEL).await == 1
    })
    .await;
    writing.release().await.unwrap();
    soon("the reader acquires the lock", waiting)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    reading.release().await.unwrap();
    nothing_left(&server, &[&holder_locks, &waiter_locks]).await;
}

#[tokio::test]
async fn the_last_readers_release_wakes_a_writer() {
    let (server, _, [holder_locks, waiter_locks]) = start(LONG_LEASE).await;
    let lock = holder_locks.read_write(NAME);
    let first_reader = lock.read().acquire().await.unwrap();
    let second_reader = lock.read().acquire().await.unwrap();
    let waiting = wait_for(waiter_locks.read_write(NAME).write());
    eventually("it waits", async || waiter_locks.usage().channels == 1).await;
    first_reader.release().await.unwrap();
    assert!(!waiting.is_finished());
    second_reader.release().await.unwrap();
    soon("the writer acquires the lock", waiting)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    nothing_left(&server, &[&holder_locks, &waiter_locks]).await;
}

#[tokio::test]
async fn a_downgraded_writer_lets_readers_in_and_no_writer() {
    let (server, _, [holder_locks, rival_locks]) = start(LEASE).await;
    let lock = holder_locks.read_write(NAME);
    let rival_lock = rival_locks.read_write(NAME);
    // The lease of the writer is over long before the reader has finished.
    let writing = lock
        .write()
        .clone()
        .without_renewal(LEASE)
        .acquire()
        .await
        .unwrap();
    assert!(rival_lock.read().try_acquire().await.unwrap().is_none());
    let reading = writing.downgrade().await.unwrap();
    for _ in 0..4 {
        renewed(|| reading.valid_for()).await;
        assert!(rival_lock.write().try_acquire().await.unwrap().is_none());
        rival_lock
            .read()
            .try_acquire()
            .await
            .unwrap()
            .expect("readers share")
            .release()
            .await
            .unwrap();
    }
    reading.release().await.unwrap();
    let lost = lock.write().acquire().await.unwrap();
    assert!(lock.write().force_unlock().await.unwrap());
    fails_as!(lost.downgrade().await, Lost);
    nothing_left(&server, &[&holder_locks, &rival_locks]).await;
}
