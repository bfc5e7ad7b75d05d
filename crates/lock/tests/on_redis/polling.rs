//! Waiting without messages: because the configuration says so, or the server has no RESP3 for them.

use std::time::{Duration, Instant};

use redisson_lock::{ChannelRefusals, LockConfig, LockUsage, Locks};

use super::channel_rights::every_kind;
use super::{LEASE, LONG_LEASE, calls_of, connected, eventually, locks, query, soon, wait_for};
use testkit::raw::connections;
use testkit::redis_server::{RedisServer, Role};

const NAME: &str = "lock:order:1";

/// Locks that do without messages.
async fn polling(server: &RedisServer, config: LockConfig) -> Locks {
    let config = config.with_pubsub(false);
    connected(server.client(), config).await.unwrap()
}

#[tokio::test]
async fn without_pubsub_one_connection_does_everything() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let before = connections(&mut raw).await;
    let locks = polling(&server, LockConfig::default().with_lease(LEASE)).await;
    every_kind(&locks).await;
    assert_eq!(connections(&mut raw).await, before + 1);
    assert_eq!(
        query::<Vec<String>>(&mut raw, "PUBSUB", &["CHANNELS"]).await,
        [""; 0]
    );
    assert_eq!(locks.refusals(), ChannelRefusals::default());
}

#[tokio::test]
async fn waiters_poll_at_their_interval() {
    let server = RedisServer::start().await;
    let holder_locks = locks(&server, LONG_LEASE).await;
    let interval = Duration::from_millis(50);
    let polling_locks = polling(&server, LockConfig::default().with_poll_interval(interval)).await;
    let lock = polling_locks.lock(NAME);
    let owner = polling_locks.owner();
    for _ in 0..3 {
        // Its lease ends long after the test.
        let held = holder_locks.lock(NAME).acquire().await.unwrap();
        let (guard, ()) = soon("it acquires", async {
            tokio::join!(async { lock.acquire_as(&owner).await.unwrap() }, async {
                eventually("it waits", async || polling_locks.usage().channels == 1).await;
                held.release().await.unwrap();
            },)
        })
        .await;
        guard.release().await.unwrap();
    }
    assert_eq!(polling_locks.usage(), LockUsage::default());
}

/// Clients that do subscribe, such as Redisson's, are woken.
#[tokio::test]
async fn releases_are_published_all_the_same() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let polling_locks = polling(&server, LockConfig::default()).await;
    let subscribed_locks = locks(&server, LONG_LEASE).await;
    let held = polling_locks.lock(NAME).acquire().await.unwrap();
    let waiting = wait_for(&subscribed_locks.lock(NAME));
    eventually("it is subscribed", async || {
        !query::<Vec<String>>(&mut raw, "PUBSUB", &["CHANNELS"])
            .await
            .is_empty()
    })
    .await;
    held.release().await.unwrap();
    soon("it acquires", waiting)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

/// As with some proxies, and some servers that are compatible with Redis.
#[tokio::test]
async fn waiters_poll_where_there_is_no_resp3() {
    let arguments = ["--rename-command", "HELLO", ""]
        .map(str::to_owned)
        .to_vec();
    let server = RedisServer::start_with_arguments(Role::Alone, arguments).await;
    let mut raw = server.conn().await;
    let connect = async || {
        let config = LockConfig::default().with_poll_interval(Duration::from_millis(50));
        connected(server.client(), config).await.unwrap()
    };
    let waiter_locks = connect().await;
    let holder_locks = connect().await;
    let held = holder_locks.lock(NAME).acquire().await.unwrap();
    let waiting = wait_for(&waiter_locks.lock(NAME));
    eventually("it is refused", async || {
        waiter_locks.refusals().subscriptions > 0
    })
    .await;
    let before = connections(&mut raw).await;
    let refused = Instant::now();
    let polls = calls_of(&mut raw, "evalsha").await;
    eventually("it polls", async || {
        calls_of(&mut raw, "evalsha").await >= polls + 20
    })
    .await;
    // It may connect again every ten seconds.
    let most_connections = before + refused.elapsed().as_secs() / 10;
    assert!(
        connections(&mut raw).await <= most_connections,
        "it connected again"
    );
    // Another waiter does not wait for an answer to a subscription first.
    let lock = waiter_locks.lock(NAME);
    let limit = Duration::from_millis(200);
    assert!(lock.acquire_within(limit).await.unwrap().is_none());
    held.release().await.unwrap();
    soon("it acquires", waiting)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let most_refusals = 1 + refused.elapsed().as_secs() / 10;
    assert!(
        waiter_locks.refusals().subscriptions <= most_refusals,
        "{:?}",
        waiter_locks.refusals()
    );
    eventually("nothing is left", async || {
        waiter_locks.usage() == LockUsage::default()
    })
    .await;
}
