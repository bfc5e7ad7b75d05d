//! Waiters of the fair lock with a time limit: they are in the queue no longer than that.

use std::time::Duration;

use redis::AsyncCommands;
use redisson_lock::{Error, LockConfig, Locks};

use super::{eventually, long_locks, soon};
use crate::support::proxy::{Mode, Proxy};
use crate::support::redis_server::RedisServer;

const NAME: &str = "printer";
const QUEUE: &str = "redisson_lock_queue:{printer}";

/// Far below the lease of 30 s, for which a waiter without a limit counts as alive.
const LIMIT: Duration = Duration::from_millis(500);

#[tokio::test]
async fn a_waiter_that_gave_up_is_in_nobodys_way_though_it_cannot_leave() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let behind_proxy = Locks::connect(proxy.redis(), LockConfig::default()).await.unwrap();
    let direct = long_locks(&server).await;
    let holder = direct.fair(NAME).acquire().await.unwrap();

    let (lock, owner) = (behind_proxy.fair(NAME), behind_proxy.owner());
    let waiting = tokio::spawn(async move { lock.acquire_within_as(&owner, LIMIT).await });
    eventually("it is queued", async || raw.llen::<_, usize>(QUEUE).await.unwrap() == 1).await;
    // From now on it cannot tell the queue that it leaves.
    proxy.set(Mode::Hang);
    let limited = soon("its limit", waiting).await.unwrap().map(|guard| guard.is_none());
    assert!(matches!(limited, Ok(true) | Err(Error::Unavailable { .. })), "{limited:?}");

    holder.release().await.unwrap();
    let next = direct.owner();
    eventually("another acquires the free lock", async || {
        direct.fair(NAME).try_acquire_as(&next).await.unwrap().is_some()
    })
    .await;
}

#[tokio::test]
async fn a_call_with_a_limit_does_not_end_its_owners_other_wait() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let (locks, others) = (long_locks(&server).await, long_locks(&server).await);
    let holder = others.fair(NAME).acquire().await.unwrap();

    let (lock, owner) = (locks.fair(NAME), locks.owner());
    let patient = tokio::spawn({
        let (lock, owner) = (lock.clone(), owner);
        async move { lock.acquire_as(&owner).await }
    });
    eventually("it is queued", async || raw.llen::<_, usize>(QUEUE).await.unwrap() == 1).await;
    assert!(lock.acquire_within_as(&owner, Duration::from_millis(400)).await.unwrap().is_none());
    // By the server's clock, too, its limit has passed. Any try removes the waiters that count as dead.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(others.fair(NAME).try_acquire().await.unwrap().is_none());
    assert_eq!(raw.llen::<_, usize>(QUEUE).await.unwrap(), 1);

    holder.release().await.unwrap();
    soon("its turn", patient).await.unwrap().unwrap().release().await.unwrap();
}
