//! Locks on a master monitored by Redis Sentinel: failover.

use std::time::{Duration, Instant};

use redis::RedisConnectionInfo;
use redisson_lock::{Error, LockConfig, LockUsage, Locks, Server};

use super::{LONG_LEASE, connected, eventually, query, soon, subscribers, wait_for};
use testkit::redis_sentinel::{MASTER, RedisSentinel};

const NAME: &str = "lock:order:1";
const CHANNEL: &str = "redisson_lock__channel:{lock:order:1}";

async fn connect(sentinel: &RedisSentinel) -> Locks {
    let login = RedisConnectionInfo::default();
    let server = Server::sentinel(sentinel.urls(), MASTER, login).unwrap();
    connected(server, LockConfig::default().with_lease(LONG_LEASE))
        .await
        .expect("connect")
}

#[tokio::test]
async fn locks_follow_a_failover_from_a_killed_master() {
    let mut sentinel = RedisSentinel::start().await;
    let holder_locks = connect(&sentinel).await;
    let waiter_locks = connect(&sentinel).await;
    let lock = holder_locks.lock(NAME);
    let guard = lock.acquire().await.unwrap();
    let waiting = wait_for(&waiter_locks.lock(NAME));
    let mut replica = sentinel.servers[1].conn().await;
    eventually("the replica has the lock", async || {
        query::<i64>(&mut replica, "EXISTS", &[NAME]).await == 1
    })
    .await;
    let mut master = sentinel.servers[0].conn().await;
    eventually("it is subscribed", async || {
        subscribers(&mut master, CHANNEL).await == 1
    })
    .await;
    sentinel.servers[0].kill();

    let mut failed = 0;
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        assert!(Instant::now() < deadline, "no new master was found");
        let started = Instant::now();
        match lock.is_locked().await {
            Ok(locked) => {
                assert!(locked, "the lock was there");
                break;
            }
            Err(Error::Unavailable { .. }) => failed += 1,
            Err(error) => panic!("{error:?}"),
        }
        assert!(
            started.elapsed() < Duration::from_secs(4),
            "{:?}",
            started.elapsed()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(failed > 0, "no command failed");
    // The waiter's process subscribes at the new master.
    let mut new_master = sentinel.servers[1].conn().await;
    eventually("it is subscribed", async || {
        subscribers(&mut new_master, CHANNEL).await == 1
    })
    .await;
    let released = Instant::now();
    guard.release().await.unwrap();
    soon("the waiter acquires the lock", waiting)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    assert!(
        released.elapsed() < Duration::from_secs(10),
        "{:?}",
        released.elapsed()
    );
    assert_eq!(
        (holder_locks.usage(), waiter_locks.usage()),
        (LockUsage::default(), LockUsage::default())
    );
}
