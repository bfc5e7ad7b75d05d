//! Leases: a load that began before an invalidation is stored neither in Redis nor in memory.

use std::time::Duration;

use cache_aside::{InvalidationStatus, ReadStrategy};

use super::{
    EXPIRED, KEY, LEASE, MUTEX, Source, eventually, get, nodes, policy, redis_server,
    spawn_version, version,
};

/// For each strategy, invalidated by the node that loads and by the other one.
#[tokio::test]
async fn a_load_that_began_before_an_invalidation_is_never_stored() {
    let (server, mut raw) = redis_server().await;
    for strategy in ReadStrategy::ALL {
        for invalidator in [0, 1] {
            let nodes = nodes(&server).await;
            let source = Source::new(Duration::ZERO);
            let policy = policy();
            source.close();
            let reader = spawn_version(&nodes[0], strategy, &policy, &source);
            eventually("the old row is read", async || source.running() == 1).await;
            source.change();
            assert_eq!(
                nodes[invalidator].invalidate(&[KEY]).await,
                InvalidationStatus::Delivered
            );
            source.open();
            let answer = reader.await.unwrap();
            let what = format!("{strategy}, invalidated by node {invalidator}");
            let cached = get(&mut raw, KEY).await;
            assert!(
                cached.is_none_or(|text| text.contains(r#""version":2"#)),
                "{what}"
            );
            if matches!(
                strategy,
                ReadStrategy::Mutex | ReadStrategy::LogicalExpiry | ReadStrategy::Layered
            ) {
                assert_eq!(
                    answer,
                    Some(2),
                    "{what}: loaded again, as the first load was refused"
                );
                assert_eq!(policy.stats().refused, 1, "{what}");
            }
            for cache in &nodes {
                assert_eq!(
                    version(cache, strategy, &policy, &source).await,
                    Some(2),
                    "{what}"
                );
            }
            assert_eq!(
                (get(&mut raw, MUTEX).await, get(&mut raw, LEASE).await),
                (None, None)
            );
            assert_eq!(
                nodes[0].invalidate(&[KEY]).await,
                InvalidationStatus::Delivered
            );
        }
    }
}

/// Two loads share one lease. It must not expire at the time that the first of them set.
#[tokio::test]
async fn a_load_that_shares_the_lease_of_another_prolongs_it() {
    let (server, mut raw) = redis_server().await;
    let nodes = nodes(&server).await;
    let source = Source::new(Duration::ZERO);
    let lease = [LEASE, "of another load", "PX", "10000"];
    let _: () = super::command(&mut raw, "SET", &lease).await;
    source.close();
    let reader = spawn_version(&nodes[0], ReadStrategy::Mutex, &policy(), &source);
    eventually("it loads", async || source.running() == 1).await;
    let remaining_ms: i64 = super::command(&mut raw, "PTTL", &[LEASE]).await;
    assert!(remaining_ms > 30_000, "{remaining_ms} ms");
    source.open();
    assert_eq!(reader.await.unwrap(), Some(1));
    assert!(get(&mut raw, KEY).await.is_some(), "it is not stored");
}

#[tokio::test]
async fn a_background_rebuild_that_began_before_an_invalidation_is_not_stored() {
    let (server, mut raw) = redis_server().await;
    let expiring = [KEY, r#"{"id":1,"version":1}"#, "PX", "60000"];
    for (strategy, value) in [
        (ReadStrategy::LogicalExpiry, &[KEY, EXPIRED][..]),
        (ReadStrategy::Layered, &expiring),
    ] {
        let nodes = nodes(&server).await;
        let source = Source::new(Duration::ZERO);
        let _: () = super::command(&mut raw, "SET", value).await;
        source.close();
        assert_eq!(
            version(&nodes[0], strategy, &policy(), &source).await,
            Some(1),
            "{strategy}"
        );
        eventually("the rebuild runs", async || source.running() == 1).await;
        source.change();
        assert_eq!(
            nodes[1].invalidate(&[KEY]).await,
            InvalidationStatus::Delivered
        );
        source.open();
        eventually("the rebuild ends", async || {
            get(&mut raw, MUTEX).await.is_none()
        })
        .await;
        eventually("no load runs", async || source.running() == 0).await;
        for cache in &nodes {
            eventually("the message has arrived", async || {
                version(cache, strategy, &policy(), &source).await == Some(2)
            })
            .await;
        }
        assert!(
            get(&mut raw, KEY)
                .await
                .is_none_or(|text| text.contains(r#""version":2"#))
        );
    }
}
