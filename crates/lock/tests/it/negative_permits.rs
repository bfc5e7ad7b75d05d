//! Semaphores with fewer than no free permits: more were removed than were free.

use std::time::{Duration, Instant};

use redis::AsyncCommands;

use super::semaphore::next_message;
use super::{eventually, long_locks, query, soon};
use crate::support::redis_server::RedisServer;

const NAME: &str = "gate";

/// Releases pay off what is missing, and wake nobody before.
#[tokio::test]
async fn waiters_of_a_semaphore_wait_until_enough_are_released() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let (here, there) = (long_locks(&server).await, long_locks(&server).await);
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
    gate.try_acquire(0).await.unwrap().unwrap().release().await.unwrap();
    let (mut sink, mut messages) = server.client().get_async_pubsub().await.unwrap().split();
    sink.subscribe("redisson_sc:{gate}").await.unwrap();
    let waiting = {
        let gate = there.semaphore(NAME);
        tokio::spawn(async move { gate.acquire(2).await })
    };
    eventually("it waits", async || {
        let (_, count): (String, i64) =
            query(&mut raw, "PUBSUB", &["NUMSUB", "redisson_sc:{gate}"]).await;
        count == 2
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
    let permits = soon("it acquires them", waiting).await.unwrap().unwrap();
    assert_eq!(gate.available().await.unwrap(), 0);
    permits.release().await.unwrap();
    assert_eq!(raw.get::<_, i64>(NAME).await.unwrap(), 2);
}

/// Expired permits pay off what is missing, too, and a waiter knows when enough will have expired.
#[tokio::test]
async fn waiters_of_a_leased_semaphore_know_when_enough_expire() {
    const LEASES: [Duration; 3] =
        [Duration::from_secs(3), Duration::from_secs(4), Duration::from_secs(60)];
    let server = RedisServer::start().await;
    let locks = long_locks(&server).await;
    let gate = |lease| locks.leased_semaphore(NAME, lease);
    gate(LEASES[0]).try_set_permits(3).await.unwrap();
    let started = Instant::now();
    for lease in LEASES {
        std::mem::forget(gate(lease).acquire(1).await.unwrap());
    }
    gate(LEASES[0]).add_permits(-1).await.unwrap();
    assert_eq!(gate(LEASES[0]).available().await.unwrap(), -1);
    // The first to expire makes good for the one that was removed, the second is free.
    let permit = soon("it acquires the second", gate(LEASES[2]).acquire(1)).await.unwrap();
    // Without a message, and long before it would try again by itself.
    assert!(started.elapsed() >= LEASES[1], "{:?}", started.elapsed());
    assert_eq!(gate(LEASES[0]).available().await.unwrap(), 0);
    assert!(gate(LEASES[0]).try_acquire(1).await.unwrap().is_none());
    permit.release().await.unwrap();
    assert_eq!(gate(LEASES[0]).available().await.unwrap(), 1);
}
