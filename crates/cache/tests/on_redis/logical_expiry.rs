//! Logical expiry: misses, and rebuilds that fail.

use std::time::Duration;

use cache_aside::ReadStrategy;

use super::{
    EXPIRED, KEY, MUTEX, Source, Switch, command, eventually, get, node, nodes, policy, read,
    redis_server, version,
};

const STRATEGY: ReadStrategy = ReadStrategy::LogicalExpiry;

#[tokio::test]
async fn a_failed_rebuild_keeps_the_old_value_and_the_next_reader_tries_again() {
    let (server, mut raw) = redis_server().await;
    let nodes = nodes(&server).await;
    let source = Source::new(Duration::ZERO);
    let _: () = command(&mut raw, "SET", &[KEY, EXPIRED]).await;
    source.change();
    let policy = policy();
    let failures: [Switch; 2] = [|source| &source.broken, |source| &source.panics];
    for (attempt, failure) in failures.into_iter().enumerate() {
        source.set(failure, true);
        let failed = attempt as u64 + 1;
        assert_eq!(
            version(&nodes[0], STRATEGY, &policy, &source).await,
            Some(1)
        );
        eventually("the rebuild fails", async || {
            policy.stats().load_failures == failed
        })
        .await;
        eventually("the mutex is free", async || {
            get(&mut raw, MUTEX).await.is_none()
        })
        .await;
        source.set(failure, false);
    }
    eventually("the new value is there", async || {
        version(&nodes[1], STRATEGY, &policy, &source).await == Some(2)
    })
    .await;
}

/// Redis answers reads but runs no script, so that nothing can be stored; as when it is too slow for some commands.
#[tokio::test]
async fn a_stale_value_is_not_loaded_while_nothing_can_be_stored() {
    let (server, mut raw) = redis_server().await;
    let cache = node(&server).await;
    let source = Source::new(Duration::ZERO);
    let _: () = command(&mut raw, "SET", &[KEY, EXPIRED]).await;
    source.change();
    let policy = policy();
    let _: () = command(&mut raw, "ACL", &["SETUSER", "default", "-evalsha"]).await;
    for stale in 1..=20 {
        assert_eq!(version(&cache, STRATEGY, &policy, &source).await, Some(1));
        assert_eq!(policy.stats().stale_served, stale);
    }
    let _: () = command(&mut raw, "ACL", &["SETUSER", "default", "+evalsha"]).await;
    eventually("the new value is there", async || {
        version(&cache, STRATEGY, &policy, &source).await == Some(2)
    })
    .await;
    assert_eq!(source.loads(), 1);
}

#[tokio::test]
async fn a_deleted_row_becomes_a_cached_null() {
    let (server, mut raw) = redis_server().await;
    let cache = node(&server).await;
    let source = Source::new(Duration::ZERO);
    source.set(|source| &source.missing, true);
    let _: () = command(&mut raw, "SET", &[KEY, EXPIRED]).await;
    assert!(
        read(&cache, STRATEGY, &policy(), &source)
            .await
            .unwrap()
            .is_some(),
        "stale for one more read"
    );
    eventually("absent", async || {
        read(&cache, STRATEGY, &policy(), &source)
            .await
            .unwrap()
            .is_none()
    })
    .await;
    assert_eq!(get(&mut raw, KEY).await.as_deref(), Some(""));
    assert!(command::<i64>(&mut raw, "PTTL", &[KEY]).await > 0);
}
