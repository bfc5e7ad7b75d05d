//! Logical expiry: what a miss means, and rebuilds that go wrong.

use std::time::Duration;

use cache_aside::{Kind, Ttl};

use super::{
    KEY, MUTEX, Shop, Source, Switch, ask, eventually, get, node, nodes, policy, read, version,
};
use crate::support::redis_server::RedisServer;

const KIND: Kind = Kind::LogicalExpiry;

#[tokio::test]
async fn a_row_that_was_never_cached_exists_all_the_same() {
    let server = RedisServer::start().await;
    let cache = node(&server).await;
    let source = Source::new(Duration::ZERO);
    assert_eq!(version(&cache, KIND, &policy(), &source).await, Some(1));
}

#[tokio::test]
async fn a_failed_rebuild_keeps_the_old_value_and_the_next_reader_tries_again() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let nodes = nodes(&server).await;
    let source = Source::new(Duration::ZERO);
    let shop = Shop { id: 1, version: 1 };
    let expired = Ttl::exact(Duration::from_millis(1));
    nodes[0].set_with_logical_expiry(KEY, &shop, expired).await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    source.change();
    let policy = policy();
    let faults: [Switch; 2] = [|source| &source.broken, |source| &source.panics];
    for (attempt, fault) in faults.into_iter().enumerate() {
        source.set(fault, true);
        let failed = attempt as u64 + 1;
        assert_eq!(version(&nodes[0], KIND, &policy, &source).await, Some(1));
        eventually("the rebuild fails", async || policy.stats().load_failures == failed).await;
        eventually("the mutex is free", async || get(&mut raw, MUTEX).await.is_none()).await;
        source.set(fault, false);
    }
    eventually("the new value is there", async || {
        version(&nodes[1], KIND, &policy, &source).await == Some(2)
    })
    .await;
}

#[tokio::test]
async fn a_row_that_is_gone_becomes_a_cached_null() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let cache = node(&server).await;
    let source = Source::new(Duration::ZERO);
    source.set(|source| &source.missing, true);
    let _: () =
        ask(&mut raw, "SET", &[KEY, r#"{"data":{"id":1,"version":1},"expireTime":5}"#]).await;
    assert!(read(&cache, KIND, &policy(), &source).await.unwrap().is_some(), "stale, once more");
    eventually("gone", async || read(&cache, KIND, &policy(), &source).await.unwrap().is_none())
        .await;
    assert_eq!(get(&mut raw, KEY).await.as_deref(), Some(""));
    assert!(ask::<i64>(&mut raw, "PTTL", &[KEY]).await > 0);
}
