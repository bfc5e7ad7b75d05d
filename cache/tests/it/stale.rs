//! A load that began before an invalidation must not survive it: not in Redis, not in memory.

use redis::AsyncCommands;
use std::time::Duration;

use cache_aside::{Delivery, Kind, Ttl};

use super::{KEY, LEASE, MUTEX, Shop, Source, eventually, get, nodes, policy, version};
use crate::support::redis_server::RedisServer;

/// For each policy, invalidated by the node that loads and by the other one.
#[tokio::test]
async fn a_load_that_began_before_an_invalidation_is_never_kept() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    for kind in Kind::ALL {
        for invalidator in [0, 1] {
            let nodes = nodes(&server).await;
            let source = Source::new(Duration::ZERO);
            let policy = policy();
            source.set(|source| &source.closed, true);
            let reader = tokio::spawn({
                let (cache, policy, source) = (nodes[0].clone(), policy.clone(), source.clone());
                async move { version(&cache, kind, &policy, &source).await }
            });
            eventually("the old row is read", async || source.running() == 1).await;
            source.change();
            assert_eq!(nodes[invalidator].invalidate(&[KEY]).await, Delivery::Done);
            source.set(|source| &source.closed, false);
            let answer = reader.await.unwrap();
            let what = format!("{kind}, invalidated by node {invalidator}");
            let cached = get(&mut raw, KEY).await;
            assert!(cached.is_none_or(|text| text.contains(r#""version":2"#)), "{what}");
            if matches!(kind, Kind::Mutex | Kind::LogicalExpiry | Kind::Layered) {
                assert_eq!(answer, Some(2), "{what}: loaded again, as the first load was refused");
                assert_eq!(policy.stats().refused, 1, "{what}");
            }
            for cache in &nodes {
                assert_eq!(version(cache, kind, &policy, &source).await, Some(2), "{what}");
            }
            assert_eq!((get(&mut raw, MUTEX).await, get(&mut raw, LEASE).await), (None, None));
            assert_eq!(nodes[0].invalidate(&[KEY]).await, Delivery::Done);
        }
    }
}

/// What the usual version does: the check above can fail.
#[tokio::test]
async fn a_store_without_lease_keeps_the_old_row() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let nodes = nodes(&server).await;
    let source = Source::new(Duration::ZERO);
    let old = source.clone().find().await.unwrap().unwrap();
    source.change();
    assert_eq!(nodes[0].invalidate(&[KEY]).await, Delivery::Done);
    let _: () = raw.set(KEY, serde_json::to_string(&old).unwrap()).await.unwrap();
    assert_eq!(version(&nodes[0], Kind::Mutex, &policy(), &source).await, Some(1));
}

#[tokio::test]
async fn a_rebuild_of_a_stale_value_is_dropped_as_well() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let expired = Ttl::exact(Duration::from_millis(1));
    let shop = Shop { id: 1, version: 1 };
    for kind in [Kind::LogicalExpiry, Kind::Layered] {
        let nodes = nodes(&server).await;
        let source = Source::new(Duration::ZERO);
        nodes[0].set_with_logical_expiry(KEY, &shop, expired).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
        source.set(|source| &source.closed, true);
        assert_eq!(version(&nodes[0], kind, &policy(), &source).await, Some(1), "{kind}");
        eventually("it is rebuilt", async || source.running() == 1).await;
        source.change();
        assert_eq!(nodes[1].invalidate(&[KEY]).await, Delivery::Done);
        source.set(|source| &source.closed, false);
        eventually("the rebuild ends", async || get(&mut raw, MUTEX).await.is_none()).await;
        eventually("nothing runs", async || source.running() == 0).await;
        for cache in &nodes {
            eventually("the message has arrived", async || {
                version(cache, kind, &policy(), &source).await == Some(2)
            })
            .await;
        }
        assert!(get(&mut raw, KEY).await.is_none_or(|text| text.contains(r#""version":2"#)));
    }
}

#[tokio::test]
async fn what_is_set_by_hand_is_not_overwritten_by_a_load_on_its_way() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let nodes = nodes(&server).await;
    let source = Source::new(Duration::ZERO);
    source.set(|source| &source.closed, true);
    let reader = tokio::spawn({
        let (cache, source) = (nodes[0].clone(), source.clone());
        async move { version(&cache, Kind::Layered, &policy(), &source).await }
    });
    eventually("the row is read", async || source.running() == 1).await;
    let ttl = Ttl::exact(Duration::from_secs(60));
    nodes[1].set(KEY, &Shop { id: 1, version: 50 }, ttl).await.unwrap();
    source.set(|source| &source.closed, false);
    assert_eq!(reader.await.unwrap(), Some(50));
    assert!(get(&mut raw, KEY).await.unwrap().contains("50"));
}

/// A Redis that lost its data has lost the lease as well.
#[tokio::test]
async fn a_flush_during_a_load_stores_nothing_older() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let nodes = nodes(&server).await;
    let source = Source::new(Duration::ZERO);
    source.set(|source| &source.closed, true);
    let reader = tokio::spawn({
        let (cache, source) = (nodes[0].clone(), source.clone());
        async move { version(&cache, Kind::NullCaching, &policy(), &source).await }
    });
    eventually("the old row is read", async || source.running() == 1).await;
    source.change();
    assert_eq!(nodes[1].invalidate(&[KEY]).await, Delivery::Done);
    let _: () = super::ask(&mut raw, "FLUSHALL", &[]).await;
    source.set(|source| &source.closed, false);
    reader.await.unwrap();
    assert_eq!(get(&mut raw, KEY).await, None);
}
