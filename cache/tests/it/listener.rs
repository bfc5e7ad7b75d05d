//! Memory and the connection that keeps it honest: cut, cut off by a proxy, silent.

use std::time::{Duration, Instant};

use cache_aside::{Cache, CacheConfig, Delivery, Kind, Policy};
use redis::Client;

use super::{KEY, Source, ask, eventually, manager, node, policy, version};
use crate::support::proxy::{Mode, Proxy};
use crate::support::redis_server::RedisServer;

/// A node that sends its commands straight to Redis and listens through a proxy.
async fn behind_proxy(server: &RedisServer) -> (Cache, Proxy) {
    let address = server.url().trim_start_matches("redis://").trim_end_matches('/').to_owned();
    let proxy = Proxy::start(address).await.unwrap();
    let client = Client::open(format!("redis://{}/", proxy.address)).unwrap();
    let cache = Cache::new(manager(server).await, client, CacheConfig::default());
    eventually("the node listens", async || cache.stats().local_trusted).await;
    (cache, proxy)
}

/// In memory for so long that only messages can be what makes changes visible.
fn long() -> Policy {
    Policy { local_ttl: Duration::from_secs(3600), ..policy() }
}

#[tokio::test]
async fn a_node_that_cannot_hear_keeps_nothing_in_memory() {
    let server = RedisServer::start().await;
    let (deaf, proxy) = behind_proxy(&server).await;
    let writer = node(&server).await;
    let (source, policy) = (Source::new(Duration::ZERO), long());
    version(&deaf, Kind::Layered, &policy, &source).await;
    version(&deaf, Kind::Layered, &policy, &source).await;
    assert_eq!(policy.stats().local_hits, 1, "memory was in use");

    proxy.set(Mode::Cut);
    eventually("the loss is noticed", async || !deaf.stats().local_trusted).await;
    for _ in 0..20 {
        let now = source.change();
        assert_eq!(writer.invalidate(&[KEY]).await, Delivery::Done);
        assert_eq!(version(&deaf, Kind::Layered, &policy, &source).await, Some(now));
    }
    assert_eq!(policy.stats().local_hits, 1);

    proxy.set(Mode::Forward);
    eventually("it hears again", async || deaf.stats().local_trusted).await;
    version(&deaf, Kind::Layered, &policy, &source).await;
    version(&deaf, Kind::Layered, &policy, &source).await;
    assert_eq!(policy.stats().local_hits, 2, "and memory is in use again");
    assert_eq!(deaf.stats().counts.listener_losses, 1);
}

#[tokio::test]
async fn what_was_missed_while_the_connection_was_gone_is_forgotten_with_all_else() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let (deaf, proxy) = behind_proxy(&server).await;
    let writer = node(&server).await;
    let (source, policy) = (Source::new(Duration::ZERO), long());
    for _ in 0..5 {
        version(&deaf, Kind::Layered, &policy, &source).await;
        let losses = deaf.stats().counts.listener_losses;
        // The connection breaks, and the change happens before it is back.
        proxy.set(Mode::Cut);
        let now = source.change();
        assert_eq!(writer.invalidate(&[KEY]).await, Delivery::Done);
        proxy.set(Mode::Forward);
        // A connection may live on if the cut was too short to be seen; cut it on the server, too.
        let _: u64 = ask(&mut raw, "CLIENT", &["KILL", "TYPE", "pubsub"]).await;
        eventually("lost and back", async || {
            deaf.stats().counts.listener_losses > losses && deaf.stats().local_trusted
        })
        .await;
        assert_eq!(version(&deaf, Kind::Layered, &policy, &source).await, Some(now));
    }
}

/// Nothing tells that a connection has gone silent: the time to live in memory is the bound.
#[tokio::test]
async fn a_silent_connection_costs_no_more_than_the_life_in_memory() {
    let server = RedisServer::start().await;
    let (deaf, proxy) = behind_proxy(&server).await;
    let writer = node(&server).await;
    let (source, policy) = (Source::new(Duration::ZERO), policy());
    for _ in 0..3 {
        version(&deaf, Kind::Layered, &policy, &source).await;
        proxy.set(Mode::Hang);
        let now = source.change();
        assert_eq!(writer.invalidate(&[KEY]).await, Delivery::Done);
        let changed = Instant::now();
        while version(&deaf, Kind::Layered, &policy, &source).await != Some(now) {
            assert!(changed.elapsed() < Duration::from_secs(10), "never seen");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let took = changed.elapsed();
        println!("seen {took:?} after the change, {:?} in memory", policy.local_ttl);
        assert!(took < policy.local_ttl + Duration::from_millis(200), "{took:?}");
        proxy.set(Mode::Forward);
        eventually("it hears", async || deaf.stats().local_trusted).await;
    }
}

/// Changes one after another while the connections are cut again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_are_seen_within_the_bound_while_connections_are_cut() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let nodes = super::nodes(&server).await;
    let (source, policy) = (Source::new(Duration::ZERO), policy());
    let mut worst = Duration::ZERO;
    for turn in 0..400 {
        if turn % 40 == 20 {
            let killed: u64 = ask(&mut raw, "CLIENT", &["KILL", "TYPE", "pubsub"]).await;
            assert!(killed > 0, "nothing was cut");
        }
        let now = source.change();
        assert_eq!(nodes[turn % 2].invalidate(&[KEY]).await, Delivery::Done);
        let changed = Instant::now();
        for cache in &nodes {
            while version(cache, Kind::Layered, &policy, &source).await != Some(now) {
                assert!(changed.elapsed() < Duration::from_secs(10), "never seen");
            }
        }
        worst = worst.max(changed.elapsed());
    }
    println!("400 changes, connections cut 10 times: seen at most {worst:?} later");
    assert!(worst < policy.local_ttl + Duration::from_millis(200), "{worst:?}");
}

/// The old value does stay in memory when nobody says otherwise: the checks above can fail.
#[tokio::test]
async fn without_a_message_memory_serves_the_old_value() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let cache = node(&server).await;
    let (source, policy) = (Source::new(Duration::ZERO), long());
    version(&cache, Kind::Layered, &policy, &source).await;
    source.change();
    let _: i64 = ask(&mut raw, "DEL", &[KEY]).await;
    assert_eq!(version(&cache, Kind::Layered, &policy, &source).await, Some(1));
}
