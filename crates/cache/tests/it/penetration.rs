//! Cache penetration (ids that do not exist), cache avalanche (keys that expire together), and
//! warm-up.

use std::collections::HashMap;
use std::time::Duration;

use cache_aside::{ReadStrategy, Ttl};
use redis::AsyncCommands;

use super::{KEY, Source, command, get, node, nodes, policy, read, version};
use testkit::redis_server::RedisServer;

#[tokio::test]
async fn every_strategy_but_plain_cache_aside_caches_nulls() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    for strategy in ReadStrategy::ALL {
        let _: () = command(&mut raw, "FLUSHALL", &[]).await;
        let nodes = nodes(&server).await;
        let source = Source::new(Duration::ZERO);
        source.set(|source| &source.missing, true);
        for turn in 0..20 {
            assert_eq!(version(&nodes[turn % 2], strategy, &policy(), &source).await, None);
        }
        if strategy == ReadStrategy::CacheAside {
            assert_eq!(source.loads(), 20, "a load per read");
            continue;
        }
        assert_eq!(source.loads(), 1, "{strategy}");
        assert_eq!(get(&mut raw, KEY).await.as_deref(), Some(""), "{strategy}");
        let left: i64 = raw.pttl(KEY).await.unwrap();
        assert!((100_000..=120_000).contains(&left), "{strategy}: {left} ms");
        // The row is inserted, and its writer invalidates.
        source.set(|source| &source.missing, false);
        assert_eq!(nodes[0].invalidate(&[KEY]).await, cache_aside::InvalidationStatus::Delivered);
        assert_eq!(version(&nodes[0], strategy, &policy(), &source).await, Some(1), "{strategy}");
    }
}

/// Stores 2,000 keys; returns the share that expires in the fullest second.
async fn fullest_second(ttl: Ttl) -> f64 {
    let server = RedisServer::start().await;
    let cache = node(&server).await;
    let source = Source::new(Duration::ZERO);
    let policy = policy().with_ttl(ttl);
    let keys: Vec<String> = (0..2000).map(|id| format!("cache:product:{id}")).collect();
    let work = keys.iter().map(|key| (key.clone(), source.load()));
    let done = cache.warm_up(ReadStrategy::Layered, &policy, work, 16).await;
    assert_eq!((done.present, done.absent, done.failed), (2000, 0, 0));
    let mut raw = server.conn().await;
    let mut seconds: HashMap<i64, u32> = HashMap::new();
    for key in &keys {
        let at: i64 = redis::cmd("PEXPIRETIME").arg(key).query_async(&mut raw).await.unwrap();
        *seconds.entry(at / 1000).or_default() += 1;
    }
    f64::from(*seconds.values().max().unwrap()) / keys.len() as f64
}

#[tokio::test]
async fn jitter_spreads_the_expiry_of_keys_stored_together() {
    let half_hour = Duration::from_secs(30 * 60);
    let without = fullest_second(Ttl::exact(half_hour)).await;
    let with = fullest_second(Ttl::jittered(half_hour, 0.1)).await;
    println!(
        "fullest second: {:.1} % of the keys without jitter, {:.1} % with",
        without * 100.0,
        with * 100.0
    );
    assert!(with <= without / 10.0, "{with} with, {without} without");
}

#[tokio::test]
async fn warm_up_loads_missing_keys_in_the_format_of_the_strategy() {
    let server = RedisServer::start().await;
    let cache = node(&server).await;
    let mut raw = server.conn().await;
    let source = Source::new(Duration::ZERO);
    let _: () = command(&mut raw, "SET", &["cache:product:2", r#"{"id":2,"version":9}"#]).await;
    let work = || [KEY, "cache:product:2"].map(|key| (key.to_owned(), source.load()));
    let done = cache.warm_up(ReadStrategy::LogicalExpiry, &policy(), work(), 4).await;
    assert_eq!((done.present, source.loads()), (2, 1));
    assert!(get(&mut raw, KEY).await.unwrap().contains("expireTime"));
    let _: () = command(&mut raw, "FLUSHALL", &[]).await;
    source.set(|source| &source.broken, true);
    let done = cache.warm_up(ReadStrategy::Mutex, &policy(), work(), 4).await;
    assert_eq!((done.present, done.failed), (0, 2));
    source.set(|source| &source.broken, false);
    source.set(|source| &source.missing, true);
    let done = cache.warm_up(ReadStrategy::Mutex, &policy(), work(), 4).await;
    assert_eq!((done.present, done.absent, done.failed), (0, 2, 0));
    assert!(read(&cache, ReadStrategy::Mutex, &policy(), &source).await.unwrap().is_none());
}
