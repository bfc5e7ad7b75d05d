//! The semaphore: wire format, permit counts, the order of waiters, lost replies.

use std::time::Duration;

use redis::AsyncCommands;
use redisson_lock::{Error, LockConfig, LostReason, Plain};

use super::semaphores::{all_back, gate, waiting};
use super::{
    LONG_LEASE, eventually, messages, next_message, query, soon, start, start_with, subscribers,
};

const NAME: &str = "gate";
const CHANNEL: &str = "redisson_sc:{gate}";

#[tokio::test]
async fn the_wire_format_is_that_of_redisson() {
    let (server, mut raw, [locks]) = start(LONG_LEASE).await;
    let mut messages = messages(&server, CHANNEL).await;
    let semaphore = locks.semaphore(NAME);

    assert!(semaphore.try_set_permits(5).await.unwrap());
    assert_eq!(raw.get::<_, String>(NAME).await.unwrap(), "5");
    assert_eq!(next_message(&mut messages).await, "5");

    let three = semaphore.try_acquire(3).await.unwrap().unwrap();
    assert_eq!(
        (three.count(), raw.get::<_, i64>(NAME).await.unwrap()),
        (3, 2)
    );
    assert_eq!(semaphore.available().await.unwrap(), 2);
    three.release().await.unwrap();
    assert_eq!(
        (
            next_message(&mut messages).await,
            semaphore.available().await.unwrap()
        ),
        ("5".to_owned(), 5)
    );

    semaphore.add_permits(2).await.unwrap();
    assert_eq!(
        (
            next_message(&mut messages).await,
            semaphore.available().await.unwrap()
        ),
        ("7".to_owned(), 7)
    );
    semaphore.try_acquire(1).await.unwrap().unwrap().forget();
    semaphore.add_permits(-8).await.unwrap();
    assert_eq!(semaphore.available().await.unwrap(), -2);
    // With no permit free, nothing was published: the next message is that of the next call.
    semaphore.add_permits(3).await.unwrap();
    assert_eq!(next_message(&mut messages).await, "1");
    assert_eq!(raw.ttl::<_, i64>(NAME).await.unwrap(), -1);
    drop(messages);
    all_back(&mut raw, &[&locks], 1).await;
}

#[tokio::test]
async fn permits_are_added_only_to_a_semaphore_that_exists() {
    let (_server, mut raw, [locks]) = start(LONG_LEASE).await;
    let gate = locks.semaphore(NAME);
    assert!(!gate.add_permits_if_exists(2).await.unwrap());
    assert!(!raw.exists::<_, bool>(NAME).await.unwrap());
    assert!(gate.try_set_permits(0).await.unwrap());
    let waiting = waiting(&gate, 2);
    eventually("it waits", async || locks.usage().channels == 1).await;
    assert!(gate.add_permits_if_exists(2).await.unwrap());
    soon("it is woken", waiting)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    all_back(&mut raw, &[&locks], 2).await;
}

#[tokio::test]
async fn permits_that_too_few_replicas_have_are_released() {
    let config = LockConfig::default().with_replicas(1, Duration::from_millis(100));
    let (_server, mut raw, [locks]) = start_with(config).await;
    let gate = gate::<Plain>(&locks, 5).await;
    fails_as!(gate.try_acquire(2).await, Unavailable);
    assert_eq!(gate.available().await.unwrap(), 5);
    all_back(&mut raw, &[&locks], 5).await;
}

#[tokio::test]
async fn an_acquire_that_arrives_after_its_undo_acquires_nothing() {
    let (_server, mut raw, []) = start(LONG_LEASE).await;
    let _: () = raw.set(NAME, 5).await.unwrap();
    let (acquire, release) = (
        include_str!("../../lua/semaphore_acquire.lua"),
        concat!(
            include_str!("../../lua/notify.lua"),
            include_str!("../../lua/semaphore_release.lua")
        ),
    );
    let record = "{gate}:permit:1";
    let undo = [
        release, "2", NAME, record, "PUBLISH", "", CHANNEL, "2", "60000", "taken",
    ];
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
    let (_server, mut raw, [locks]) = start(LONG_LEASE).await;
    let gate = gate::<Plain>(&locks, 5).await;
    let (one, two) = (
        gate.acquire(1).await.unwrap(),
        gate.acquire(2).await.unwrap(),
    );
    let _: () = query(&mut raw, "FLUSHALL", &[]).await;
    assert_eq!(one.release().await, Err(Error::Lost(LostReason::Expired)));
    assert!(!raw.exists::<_, bool>(NAME).await.unwrap());
    // Nor are they added to the permits of a new one.
    assert!(gate.try_set_permits(5).await.unwrap());
    assert_eq!(two.release().await, Err(Error::Lost(LostReason::Expired)));
    all_back(&mut raw, &[&locks], 5).await;
}

/// Releases pay off what is missing, and wake nobody before.
#[tokio::test]
async fn permits_below_zero_are_paid_off_by_releases() {
    let (server, mut raw, [here, there]) = start(LONG_LEASE).await;
    let gate = here.semaphore(NAME);
    gate.try_set_permits(3).await.unwrap();
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(gate.acquire(1).await.unwrap());
    }
    gate.add_permits(-4).await.unwrap();
    assert_eq!(gate.available().await.unwrap(), -4);
    assert!(gate.try_acquire(1).await.unwrap().is_none());
    // None is asked for, none is needed.
    gate.try_acquire(0)
        .await
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();
    let mut messages = messages(&server, CHANNEL).await;
    let waiting = waiting(&there.semaphore(NAME), 2);
    eventually("it waits", async || {
        subscribers(&mut raw, CHANNEL).await == 1
    })
    .await;
    for expected in [-3, -2, -1] {
        held.remove(0).release().await.unwrap();
        assert_eq!(gate.available().await.unwrap(), expected);
    }
    gate.add_permits(2).await.unwrap();
    assert_eq!(next_message(&mut messages).await, "1", "the first message");
    assert!(!waiting.is_finished(), "one is free, and it waits for two");
    gate.add_permits(1).await.unwrap();
    assert_eq!(next_message(&mut messages).await, "2");
    let permits = soon("it acquires them", waiting).await.unwrap();
    assert_eq!(gate.available().await.unwrap(), 0);
    permits.release().await.unwrap();
    assert_eq!(raw.get::<_, i64>(NAME).await.unwrap(), 2);
}
