//! Changes reach every node: quickly while all is well, and at last when Redis was away.

use std::time::{Duration, Instant};

use cache_aside::{Delivery, Kind};

use super::{KEY, Source, ask, eventually, get, node, nodes, policy, read, version};
use crate::support::redis_server::RedisServer;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_node_serves_an_old_value_longer_than_a_message_takes() {
    let server = RedisServer::start().await;
    let nodes = nodes(&server).await;
    let source = Source::new(Duration::ZERO);
    // Long in memory: only messages can be what makes changes visible.
    let policy = cache_aside::Policy { local_ttl: Duration::from_secs(60), ..policy() };
    let mut worst = Duration::ZERO;
    for turn in 0..500 {
        let (writer, other) = (&nodes[turn % 2], &nodes[(turn + 1) % 2]);
        let now = source.change();
        assert_eq!(writer.invalidate(&[KEY]).await, Delivery::Done);
        let changed = Instant::now();
        let here = version(writer, Kind::Layered, &policy, &source).await;
        assert_eq!(here, Some(now), "at once where it was changed");
        while version(other, Kind::Layered, &policy, &source).await != Some(now) {
            assert!(changed.elapsed() < Duration::from_secs(10), "never heard of");
        }
        worst = worst.max(changed.elapsed());
        assert_eq!(version(other, Kind::Layered, &policy, &source).await, Some(now));
    }
    println!("500 changes, the other node at most {worst:?} later");
    assert!(worst < Duration::from_millis(500), "{worst:?}");
    assert!(policy.stats().local_hits >= 500, "memory was in use");
}

#[tokio::test]
async fn an_invalidation_that_redis_does_not_take_is_delivered_later() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let nodes = nodes(&server).await;
    let source = Source::new(Duration::ZERO);
    for kind in [Kind::Layered, Kind::Mutex, Kind::LogicalExpiry] {
        for cache in &nodes {
            version(cache, kind, &policy(), &source).await;
        }
        server.pause();
        let now = source.change();
        let started = Instant::now();
        assert_eq!(nodes[0].invalidate(&[KEY]).await, Delivery::Pending);
        assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
        assert_eq!(nodes[0].stats().retries_pending, 1);
        assert_eq!(version(&nodes[0], kind, &policy(), &source).await, Some(now), "{kind}: here");
        server.resume();
        eventually("delivered", async || nodes[0].stats().retries_pending == 0).await;
        eventually("Redis is in use", async || {
            nodes.iter().all(|cache| !cache.stats().breaker_open)
        })
        .await;
        eventually("the other node knows", async || {
            version(&nodes[1], kind, &policy(), &source).await == Some(now)
        })
        .await;
        assert!(get(&mut raw, KEY).await.is_none_or(|text| text.contains(&now.to_string())));
    }
}

/// Redis answers reads, but not this: a node that knows better does not believe it.
#[tokio::test]
async fn while_an_invalidation_is_pending_its_node_reads_from_the_source() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let [cache, other] = nodes(&server).await;
    for kind in Kind::ALL {
        let source = Source::new(Duration::ZERO);
        version(&cache, kind, &policy(), &source).await;
        let _: String = ask(&mut raw, "ACL", &["SETUSER", "default", "-del"]).await;
        let now = source.change();
        assert_eq!(cache.invalidate(&[KEY]).await, Delivery::Pending);
        assert!(get(&mut raw, KEY).await.unwrap().contains(r#""version":1"#), "{kind}");
        for _ in 0..3 {
            assert_eq!(version(&cache, kind, &policy(), &source).await, Some(now), "{kind}");
        }
        let old = version(&other, kind, &policy(), &source).await;
        assert_eq!(old, Some(1), "{kind}: the check can fail");
        let _: String = ask(&mut raw, "ACL", &["SETUSER", "default", "+del"]).await;
        eventually("delivered", async || cache.stats().retries_pending == 0).await;
        for cache in [&cache, &other] {
            eventually("both know", async || {
                version(cache, kind, &policy(), &source).await == Some(now)
            })
            .await;
        }
        assert_eq!(cache.invalidate(&[KEY]).await, Delivery::Done);
    }
}

/// The clean-up is there before readers can be misled by what a restarted Redis still knows.
#[tokio::test]
async fn a_redis_that_comes_back_with_old_values_is_told() {
    let mut server = RedisServer::start_with(true).await;
    let nodes = nodes(&server).await;
    let source = Source::new(Duration::ZERO);
    for cache in &nodes {
        version(cache, Kind::Layered, &policy(), &source).await;
    }
    server.kill();
    let now = source.change();
    assert_eq!(nodes[0].invalidate(&[KEY]).await, Delivery::Pending);
    for cache in &nodes {
        assert_eq!(version(cache, Kind::Layered, &policy(), &source).await, Some(now));
    }
    server.restart().await;
    let mut raw = server.conn().await;
    eventually("delivered", async || nodes[0].stats().retries_pending == 0).await;
    assert!(get(&mut raw, KEY).await.is_none_or(|text| text.contains(&now.to_string())));
    for cache in &nodes {
        eventually("heard again", async || cache.stats().local_trusted).await;
        assert_eq!(version(cache, Kind::Layered, &policy(), &source).await, Some(now));
    }
}

#[tokio::test]
async fn an_invalidation_is_seen_through_when_the_caller_goes_away() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let cache = node(&server).await;
    let source = Source::new(Duration::ZERO);
    for polls in 1..4 {
        read(&cache, Kind::Layered, &policy(), &source).await.unwrap();
        assert!(get(&mut raw, KEY).await.is_some());
        {
            let mut work = Box::pin(cache.invalidate(&[KEY]));
            for _ in 0..polls {
                if futures_util::poll!(&mut work).is_ready() {
                    break;
                }
            }
        }
        eventually("forgotten", async || get(&mut raw, KEY).await.is_none()).await;
    }
}

#[tokio::test]
async fn shutdown_waits_for_loads_and_delivers_what_it_can() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let cache = node(&server).await;
    let source = Source::new(Duration::from_millis(100));
    let reader = tokio::spawn({
        let (cache, source) = (cache.clone(), source.clone());
        async move { version(&cache, Kind::Mutex, &policy(), &source).await }
    });
    eventually("it loads", async || source.running() == 1).await;
    cache.shutdown().await;
    assert!(get(&mut raw, KEY).await.is_some(), "stored before shutdown returned");
    assert_eq!(reader.await.unwrap(), Some(1));
    let listeners: (String, u64) = ask(&mut raw, "PUBSUB", &["NUMSUB", "cache:invalidate"]).await;
    assert_eq!(listeners.1, 0, "nobody listens");
    assert!(!cache.stats().local_trusted);
}

#[tokio::test]
async fn the_last_handle_takes_its_connections_with_it() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let cache = node(&server).await;
    drop(cache.clone());
    assert!(cache.stats().local_trusted);
    drop(cache);
    eventually("nobody listens", async || {
        let subscribed: (String, u64) =
            ask(&mut raw, "PUBSUB", &["NUMSUB", "cache:invalidate"]).await;
        subscribed.1 == 0
    })
    .await;
}
