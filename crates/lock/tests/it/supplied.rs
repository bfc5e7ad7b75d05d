//! Connections that the application has made and shares with the locks.

use std::time::{Duration, Instant};

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use redisson_lock::{Error, LockConfig, LockUsage, Locks, Server};

use super::channel_rights::every_kind;
use super::{LEASE, LONG_LEASE, eventually, locks, query, soon, wait_for};
use testkit::proxy::{Mode, Proxy};
use testkit::redis_sentinel::in_sync;
use testkit::redis_server::{RedisServer, Role};

const NAME: &str = "lock:order:1";

/// How many clients are connected to the server.
async fn clients(raw: &mut MultiplexedConnection) -> usize {
    query::<String>(raw, "CLIENT", &["LIST"]).await.lines().count()
}

async fn channels(raw: &mut MultiplexedConnection) -> usize {
    query::<Vec<String>>(raw, "PUBSUB", &["CHANNELS"]).await.len()
}

#[tokio::test]
async fn everything_goes_over_the_connection_that_was_supplied() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let mut own = server.client().get_connection_manager().await.unwrap();
    // The one that asked whether the server is up has gone.
    eventually("there are these two", async || clients(&mut raw).await == 2).await;
    let config = LockConfig::default().with_lease(LEASE);
    let locks = Locks::connect(Server::from_connection(own.clone()), config).await.unwrap();
    let using = async {
        every_kind(&locks).await;
        assert_eq!((clients(&mut raw).await, channels(&mut raw).await), (2, 0));
    };
    // The application goes on using it.
    let counting = async {
        for number in 1..=200 {
            assert_eq!(own.incr::<_, _, i64>("counter", 1).await.unwrap(), number);
        }
    };
    tokio::join!(using, counting);
    locks.shutdown().await;
    assert_eq!(own.get::<_, i64>("counter").await.unwrap(), 200);
}

#[tokio::test]
async fn a_client_beside_it_brings_messages_and_replicas() {
    let server = RedisServer::start().await;
    let replica = RedisServer::start_as(Role::ReplicaOf(server.port())).await;
    in_sync(&server, &replica).await;
    let mut raw = server.conn().await;
    let there = locks(&server, LONG_LEASE).await;
    let own = server.client().get_multiplexed_async_connection().await.unwrap();
    let without = Server::from_connection(own.clone());
    let config = LockConfig::default().with_replicas(1, Duration::from_secs(10));
    let error = Locks::connect(without.clone(), config.clone()).await.unwrap_err();
    assert!(matches!(error, Error::Rejected { .. }), "{error:?}");
    let here = Locks::connect(without.with_client(server.client()), config).await.unwrap();
    let held = there.lock(NAME).acquire().await.unwrap();
    let waiting = wait_for(&here.lock(NAME));
    eventually("it is subscribed", async || channels(&mut raw).await == 1).await;
    let released = Instant::now();
    held.release().await.unwrap();
    // Acknowledged by the replica.
    soon("it acquires", waiting).await.unwrap().release().await.unwrap();
    assert!(released.elapsed() < Duration::from_secs(5), "{:?}", released.elapsed());
    eventually("nothing is left", async || here.usage() == LockUsage::default()).await;
}

/// A manager connects again by itself; another connection fails for good, in time.
#[tokio::test]
async fn a_supplied_connection_that_breaks() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let manager = proxy.redis().get_connection_manager().await.unwrap();
    let fixed = proxy.redis().get_multiplexed_async_connection().await.unwrap();
    let connect = async |server| Locks::connect(server, LockConfig::default()).await.unwrap();
    let managed = connect(Server::from_connection(manager)).await;
    let fixed = connect(Server::from_connection(fixed)).await;
    proxy.set(Mode::Cut);
    for locks in [&managed, &fixed] {
        let lock = locks.lock(NAME);
        eventually("it fails", async || {
            let tried = soon("an answer", lock.try_acquire()).await;
            matches!(tried, Err(Error::Unavailable { .. }))
        })
        .await;
    }
    proxy.set(Mode::Forward);
    let lock = managed.lock(NAME);
    let acquired = soon("it is connected again", lock.acquire()).await;
    acquired.unwrap().release().await.unwrap();
    let lock = fixed.lock(NAME);
    let limit = Duration::from_millis(500);
    let limited = lock.acquire_within(limit).await;
    assert!(matches!(limited, Err(Error::Unavailable { .. })), "{limited:?}");
}
