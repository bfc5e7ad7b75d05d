//! Several leased permits in one acquire: all or none, one lease, released together.

use std::time::{Duration, Instant};

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use redisson_lock::{Error, LostReason};

use super::semaphore::next_message;
use super::{long_locks, query, soon};
use crate::support::redis_server::RedisServer;

const NAME: &str = "gate";
const LEASES: &str = "{gate}:timeout";
const LONG: Duration = Duration::from_secs(60);

/// How many permits are free, and how many are acquired.
async fn counts(raw: &mut MultiplexedConnection) -> (i64, i64) {
    (raw.get(NAME).await.unwrap(), raw.zcard(LEASES).await.unwrap())
}

#[tokio::test]
async fn several_permits_are_acquired_and_released_together() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = long_locks(&server).await;
    let gate = locks.leased_semaphore(NAME, LONG);
    gate.try_set_permits(5).await.unwrap();
    let mut pubsub = server.client().get_async_pubsub().await.unwrap();
    pubsub.subscribe("redisson_sc:{gate}").await.unwrap();
    let mut messages = pubsub.into_on_message();

    let mut three = gate.try_acquire(3).await.unwrap().expect("five are free");
    assert_eq!((three.count(), counts(&mut raw).await), (3, (2, 3)));
    let members: Vec<Vec<u8>> = raw.zrange(LEASES, 0, -1).await.unwrap();
    let mut members: Vec<String> =
        members.iter().map(|id| id.iter().map(|byte| format!("{byte:02x}")).collect()).collect();
    members.sort();
    assert_eq!(members, three.ids().collect::<Vec<_>>(), "16 bytes each, as Redisson's");

    assert!(gate.try_acquire(3).await.unwrap().is_none(), "only two are free");
    assert_eq!(counts(&mut raw).await, (2, 3));
    let two = gate.try_acquire(2).await.unwrap().expect("two are free");
    drop(two);
    assert_eq!(next_message(&mut messages).await, "2");

    three.extend(LONG * 2).await.unwrap();
    assert!(three.valid_for() > LONG);
    let expiries: Vec<(Vec<u8>, f64)> = raw.zrange_withscores(LEASES, 0, -1).await.unwrap();
    assert!(expiries.iter().all(|(_, expires)| *expires == expiries[0].1), "one lease for all");
    three.release().await.unwrap();
    assert_eq!(next_message(&mut messages).await, "5");
    assert_eq!(counts(&mut raw).await, (5, 0));

    let mut none = gate.acquire(0).await.unwrap();
    none.extend(LONG * 2).await.unwrap();
    assert_eq!((none.count(), none.ids().count(), counts(&mut raw).await), (0, 0, (5, 0)));
    none.release().await.unwrap();
    assert!(gate.try_acquire(u32::MAX).await.unwrap().is_none());
}

#[tokio::test]
async fn a_waiter_for_several_permits_acquires_when_enough_have_expired() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = long_locks(&server).await;
    let gate = locks.leased_semaphore(NAME, LONG);
    gate.try_set_permits(0).await.unwrap();
    let (seconds, micros): (i64, i64) = query(&mut raw, "TIME", &[]).await;
    let now = seconds * 1000 + micros / 1000;
    let crashed = [("one", now + 300), ("two", now + 900), ("three", now + 60_000)];
    for (id, expires) in crashed {
        let _: () = raw.zadd(LEASES, id, expires).await.unwrap();
    }
    let started = Instant::now();
    let two = soon("two leases end", gate.acquire(2)).await.unwrap();
    let took = started.elapsed();
    // A waiter that did not know the end of the lease would retry every ten seconds.
    assert!(took > Duration::from_millis(500) && took < Duration::from_secs(6), "{took:?}");
    assert_eq!(counts(&mut raw).await, (0, 3));
    two.release().await.unwrap();
    assert_eq!(counts(&mut raw).await, (2, 1));
}

#[tokio::test]
async fn what_is_left_of_several_permits_is_released_when_one_was_lost() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = long_locks(&server).await;
    let gate = locks.leased_semaphore(NAME, LONG);
    gate.try_set_permits(3).await.unwrap();
    let mut three = gate.acquire(3).await.unwrap();
    // As a client of Redisson's whose clock is fast does: one permit is collected as expired.
    let _: () = query(&mut raw, "ZPOPMIN", &[LEASES]).await;
    let _: i64 = raw.incr(NAME, 1).await.unwrap();
    assert_eq!(three.extend(LONG).await, Err(Error::Lost(LostReason::Expired)));
    assert_eq!(three.valid_for(), Duration::ZERO);
    assert_eq!(three.release().await, Err(Error::Lost(LostReason::Expired)));
    assert_eq!(counts(&mut raw).await, (3, 0));
}
