//! The subscription to invalidations: closed, cut by a proxy, silent; and memory meanwhile.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cache_aside::{Cache, CacheConfig, CachePolicy, InvalidationStatus, ReadStrategy};

use super::{KEY, Source, command, eventually, node, policy, redis_at, redis_server, version};
use testkit::proxy::{Mode, Proxy};
use testkit::redis_server::RedisServer;

/// A node that reaches Redis through a proxy.
async fn behind_proxy(server: &RedisServer) -> (Cache, Proxy) {
    let proxy = Proxy::start(server.address()).await.unwrap();
    let cache = Cache::new(&redis_at(proxy.redis()), CacheConfig::default());
    eventually("the node is subscribed", async || {
        cache.stats().local_enabled
    })
    .await;
    (cache, proxy)
}

/// A time to live in memory so long that only messages can make changes visible.
fn long_local_ttl() -> CachePolicy {
    CachePolicy {
        local_ttl: Duration::from_secs(3600),
        ..policy()
    }
}

#[tokio::test]
async fn a_node_without_subscription_does_not_use_memory_and_forgets_it() {
    let server = RedisServer::start().await;
    let (node_behind_proxy, proxy) = behind_proxy(&server).await;
    let writer = node(&server).await;
    let source = Source::new(Duration::ZERO);
    let policy = long_local_ttl();
    version(&node_behind_proxy, ReadStrategy::Layered, &policy, &source).await;
    version(&node_behind_proxy, ReadStrategy::Layered, &policy, &source).await;
    assert_eq!(policy.stats().local_hits, 1, "memory was in use");

    proxy.set(Mode::Cut);
    eventually("the loss is noticed", async || {
        !node_behind_proxy.stats().local_enabled
    })
    .await;
    for _ in 0..20 {
        let now = source.change();
        assert_eq!(
            writer.invalidate(&[KEY]).await,
            InvalidationStatus::Delivered
        );
        assert_eq!(
            version(&node_behind_proxy, ReadStrategy::Layered, &policy, &source).await,
            Some(now)
        );
    }
    assert_eq!(policy.stats().local_hits, 1);

    proxy.set(Mode::Forward);
    eventually("connected and subscribed again", async || {
        let stats = node_behind_proxy.stats();
        stats.local_enabled && !stats.breaker_open
    })
    .await;
    for _ in 0..2 {
        let last = version(&node_behind_proxy, ReadStrategy::Layered, &policy, &source).await;
        assert_eq!(last, Some(21), "what was in memory before is not served");
    }
    assert_eq!(policy.stats().local_hits, 2, "and memory is in use again");
    assert_eq!(node_behind_proxy.stats().counts.subscription_losses, 1);
}

/// Reads until the node sees this version, which was invalidated just now. A read that begins later than the time to
/// live in memory has to see it.
async fn seen_within_ttl(cache: &Cache, policy: &CachePolicy, source: &Arc<Source>, now: u64) {
    let changed = Instant::now();
    loop {
        let after = changed.elapsed();
        if version(cache, ReadStrategy::Layered, policy, source).await == Some(now) {
            return;
        }
        assert!(
            after <= policy.local_ttl,
            "an old value {after:?} after the change"
        );
        tokio::task::yield_now().await;
    }
}

/// A connection that is silent but open is not noticed: the time to live in memory is the bound.
#[tokio::test]
async fn behind_a_silent_connection_values_are_stale_for_the_local_ttl_at_most() {
    let server = RedisServer::start().await;
    let (node_behind_proxy, proxy) = behind_proxy(&server).await;
    let writer = node(&server).await;
    let source = Source::new(Duration::ZERO);
    let policy = policy();
    for _ in 0..3 {
        version(&node_behind_proxy, ReadStrategy::Layered, &policy, &source).await;
        proxy.set(Mode::Hang);
        let now = source.change();
        assert_eq!(
            writer.invalidate(&[KEY]).await,
            InvalidationStatus::Delivered
        );
        seen_within_ttl(&node_behind_proxy, &policy, &source, now).await;
        proxy.set(Mode::Forward);
        eventually("subscribed again", async || {
            node_behind_proxy.stats().local_enabled
        })
        .await;
    }
}

/// Changes one after another while subscriptions are closed by the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_are_seen_within_the_local_ttl_while_subscriptions_are_closed() {
    let (server, mut raw) = redis_server().await;
    let nodes = super::nodes(&server).await;
    let source = Source::new(Duration::ZERO);
    let policy = policy();
    for turn in 0..400 {
        if turn % 40 == 20 {
            let killed: u64 = command(&mut raw, "CLIENT", &["KILL", "TYPE", "pubsub"]).await;
            assert!(killed > 0, "no subscription was closed");
        }
        let now = source.change();
        assert_eq!(
            nodes[turn % 2].invalidate(&[KEY]).await,
            InvalidationStatus::Delivered
        );
        for cache in &nodes {
            seen_within_ttl(cache, &policy, &source, now).await;
        }
    }
}
