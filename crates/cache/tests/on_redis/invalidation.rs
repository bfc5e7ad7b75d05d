//! Invalidations reach every node: at once while Redis is up, and after an outage otherwise.

use std::time::Duration;

use cache_aside::{Cache, CacheConfig, InvalidationStatus, ReadStrategy};

use super::{
    KEY, Source, WAIT_LIMIT, command, eventually, get, node, node_with, nodes, patient, policy,
    read, redis_at, redis_server, spawn_version, version,
};
use testkit::proxy::Proxy;
use testkit::redis_server::{RedisServer, Role};

#[tokio::test]
async fn an_unconfirmed_invalidation_is_delivered_later() {
    let (server, mut raw) = redis_server().await;
    let nodes = [
        node_with(&server, CacheConfig::default()).await,
        node_with(&server, CacheConfig::default()).await,
    ];
    let source = Source::new(Duration::ZERO);
    for strategy in [
        ReadStrategy::Layered,
        ReadStrategy::Mutex,
        ReadStrategy::LogicalExpiry,
    ] {
        for cache in &nodes {
            version(cache, strategy, &policy(), &source).await;
        }
        server.pause();
        let now = source.change();
        let keys = [KEY];
        let answer = tokio::time::timeout(WAIT_LIMIT, nodes[0].invalidate(&keys)).await;
        assert_eq!(answer, Ok(InvalidationStatus::Pending));
        assert_eq!(nodes[0].stats().pending_invalidations, 1);
        assert_eq!(
            version(&nodes[0], strategy, &policy(), &source).await,
            Some(now),
            "{strategy}: on this node"
        );
        server.resume();
        eventually("delivered", async || {
            nodes[0].stats().pending_invalidations == 0
        })
        .await;
        eventually("Redis is in use", async || {
            nodes.iter().all(|cache| !cache.stats().breaker_open)
        })
        .await;
        eventually("the other node reads the new value", async || {
            version(&nodes[1], strategy, &policy(), &source).await == Some(now)
        })
        .await;
        assert!(
            get(&mut raw, KEY)
                .await
                .is_none_or(|text| text.contains(&format!("\"version\":{now}")))
        );
    }
}

/// Redis answers reads but refuses deletions.
#[tokio::test]
async fn a_key_with_a_pending_invalidation_is_read_from_the_source() {
    let (server, mut raw) = redis_server().await;
    let [cache, other] = nodes(&server).await;
    for strategy in ReadStrategy::ALL {
        let source = Source::new(Duration::ZERO);
        version(&cache, strategy, &policy(), &source).await;
        let _: String = command(&mut raw, "ACL", &["SETUSER", "default", "-del"]).await;
        let mut now = source.change();
        assert_eq!(cache.invalidate(&[KEY]).await, InvalidationStatus::Pending);
        assert!(
            get(&mut raw, KEY).await.unwrap().contains(r#""version":1"#),
            "{strategy}"
        );
        for _ in 0..3 {
            // Nothing is kept of what was read before.
            now = source.change();
            assert_eq!(
                version(&cache, strategy, &policy(), &source).await,
                Some(now),
                "{strategy}"
            );
        }
        let old = version(&other, strategy, &policy(), &source).await;
        assert_eq!(old, Some(1), "{strategy}: the check can fail");
        let _: String = command(&mut raw, "ACL", &["SETUSER", "default", "+del"]).await;
        eventually("delivered", async || {
            cache.stats().pending_invalidations == 0
        })
        .await;
        for cache in [&cache, &other] {
            eventually("both nodes read the new value", async || {
                version(cache, strategy, &policy(), &source).await == Some(now)
            })
            .await;
        }
        assert_eq!(
            cache.invalidate(&[KEY]).await,
            InvalidationStatus::Delivered
        );
    }
}

/// A pending invalidation is delivered before readers use what a restarted Redis still holds.
#[tokio::test]
async fn a_redis_restarted_with_old_values_is_invalidated() {
    let mut server = RedisServer::start_as(Role::Durable).await;
    let nodes = nodes(&server).await;
    let source = Source::new(Duration::ZERO);
    for cache in &nodes {
        version(cache, ReadStrategy::Layered, &policy(), &source).await;
    }
    server.kill();
    let now = source.change();
    assert_eq!(
        nodes[0].invalidate(&[KEY]).await,
        InvalidationStatus::Pending
    );
    for cache in &nodes {
        assert_eq!(
            version(cache, ReadStrategy::Layered, &policy(), &source).await,
            Some(now)
        );
    }
    server.restart().await;
    let mut raw = server.conn().await;
    eventually("delivered", async || {
        nodes[0].stats().pending_invalidations == 0
    })
    .await;
    assert!(
        get(&mut raw, KEY)
            .await
            .is_none_or(|text| text.contains(&format!("\"version\":{now}")))
    );
    for cache in &nodes {
        eventually("subscribed again", async || cache.stats().local_enabled).await;
        assert_eq!(
            version(cache, ReadStrategy::Layered, &policy(), &source).await,
            Some(now)
        );
    }
}

#[tokio::test]
async fn an_invalidation_completes_after_its_caller_is_dropped() {
    let (server, mut raw) = redis_server().await;
    let cache = node(&server).await;
    let source = Source::new(Duration::ZERO);
    for polls in 1..4 {
        read(&cache, ReadStrategy::Layered, &policy(), &source)
            .await
            .unwrap();
        assert!(get(&mut raw, KEY).await.is_some());
        {
            let mut work = Box::pin(cache.invalidate(&[KEY]));
            for _ in 0..polls {
                if futures_util::poll!(&mut work).is_ready() {
                    break;
                }
            }
        }
        eventually("deleted", async || get(&mut raw, KEY).await.is_none()).await;
    }
}

#[tokio::test]
async fn shutdown_waits_for_loads_and_unsubscribes() {
    let (server, mut raw) = redis_server().await;
    let cache = node(&server).await;
    let source = Source::new(Duration::from_millis(100));
    let reader = spawn_version(&cache, ReadStrategy::Mutex, &policy(), &source);
    eventually("the load runs", async || source.running() == 1).await;
    cache.shutdown().await;
    assert!(
        get(&mut raw, KEY).await.is_some(),
        "stored before shutdown returned"
    );
    assert_eq!(reader.await.unwrap(), Some(1));
    let subscribers: (String, u64) =
        command(&mut raw, "PUBSUB", &["NUMSUB", "cache:invalidate"]).await;
    assert_eq!(subscribers.1, 0, "unsubscribed");
    assert!(!cache.stats().local_enabled);
}

/// Also while the next retry is not due yet.
#[tokio::test]
async fn shutdown_delivers_what_is_pending() {
    let (server, mut raw) = redis_server().await;
    let source = Source::new(Duration::ZERO);
    for _ in 0..3 {
        let cache = node(&server).await;
        version(&cache, ReadStrategy::Mutex, &policy(), &source).await;
        let _: String = command(&mut raw, "ACL", &["SETUSER", "default", "-del"]).await;
        assert_eq!(cache.invalidate(&[KEY]).await, InvalidationStatus::Pending);
        let tries = cache.stats().counts.invalidation_failures;
        eventually("the pauses are long", async || {
            cache.stats().counts.invalidation_failures > tries + 5
        })
        .await;
        let _: String = command(&mut raw, "ACL", &["SETUSER", "default", "+del"]).await;
        cache.shutdown().await;
        assert_eq!(get(&mut raw, KEY).await, None);
    }
}

#[tokio::test]
async fn dropping_the_last_handle_unsubscribes() {
    let (server, mut raw) = redis_server().await;
    let cache = node(&server).await;
    drop(cache.clone());
    assert!(cache.stats().local_enabled);
    drop(cache);
    eventually("unsubscribed", async || {
        let subscribed: (String, u64) =
            command(&mut raw, "PUBSUB", &["NUMSUB", "cache:invalidate"]).await;
        subscribed.1 == 0
    })
    .await;
}

/// The same address leads to the new master by then, as with a DNS name or a proxy.
#[tokio::test]
async fn invalidations_follow_the_master_when_its_server_becomes_a_replica() {
    let before = RedisServer::start().await;
    let after = RedisServer::start().await;
    let proxy = Proxy::start(before.address()).await.unwrap();
    let cache = Cache::new(&redis_at(proxy.redis()), patient());
    eventually("the node is subscribed", async || {
        cache.stats().local_enabled
    })
    .await;
    let source = Source::new(Duration::ZERO);
    let policy = policy();
    version(&cache, ReadStrategy::Layered, &policy, &source).await;

    let port = after.port().to_string();
    let mut raw = before.conn().await;
    let _: () = command(&mut raw, "REPLICAOF", &["127.0.0.1", &port]).await;
    proxy.lead_to(after.address());
    let now = source.change();
    let _status = cache.invalidate(&[KEY]).await;
    eventually("it is delivered", async || {
        cache.stats().pending_invalidations == 0
    })
    .await;
    let read = version(&cache, ReadStrategy::Layered, &policy, &source).await;
    assert_eq!(read, Some(now));
    let mut raw = after.conn().await;
    eventually("the new master's value is used", async || {
        let _ = version(&cache, ReadStrategy::Layered, &policy, &source).await;
        get(&mut raw, KEY).await.is_some()
    })
    .await;
}
