//! Ids that do not exist, and keys that expire together.

use std::collections::HashMap;
use std::time::Duration;

use cache_aside::{Kind, Policy, Ttl};
use redis::AsyncCommands;

use super::{KEY, Source, ask, get, node, nodes, policy, read, version};
use crate::support::redis_server::RedisServer;

#[tokio::test]
async fn absent_rows_are_remembered_by_every_policy_but_the_naive_one() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    for kind in Kind::ALL {
        let _: () = ask(&mut raw, "FLUSHALL", &[]).await;
        let nodes = nodes(&server).await;
        let source = Source::new(Duration::ZERO);
        source.set(|source| &source.missing, true);
        for turn in 0..20 {
            assert_eq!(version(&nodes[turn % 2], kind, &policy(), &source).await, None);
        }
        if kind == Kind::CacheAside {
            assert_eq!(source.loads(), 20, "the check cannot fail");
            continue;
        }
        assert_eq!(source.loads(), 1, "{kind}");
        assert_eq!(get(&mut raw, KEY).await.as_deref(), Some(""), "{kind}");
        let left: i64 = raw.pttl(KEY).await.unwrap();
        assert!((100_000..=120_000).contains(&left), "{kind}: {left} ms");
        // The row appears; whoever writes it invalidates.
        source.set(|source| &source.missing, false);
        assert_eq!(nodes[0].invalidate(&[KEY]).await, cache_aside::Delivery::Done);
        assert_eq!(version(&nodes[0], kind, &policy(), &source).await, Some(1), "{kind}");
    }
}

/// The share of `keys` that expires in the worst second.
async fn worst_second(ttl: Ttl) -> f64 {
    let server = RedisServer::start().await;
    let cache = node(&server).await;
    let source = Source::new(Duration::ZERO);
    let policy = Policy { ttl, ..policy() };
    let keys: Vec<String> = (0..2000).map(|id| format!("cache:shop:{id}")).collect();
    let work = keys.iter().map(|key| (key.clone(), source.load()));
    let done = cache.warm_up(Kind::Layered, &policy, work, 16).await;
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
async fn jitter_spreads_what_was_stored_together() {
    let half_hour = Duration::from_secs(30 * 60);
    let without = worst_second(Ttl::exact(half_hour)).await;
    let with = worst_second(Ttl::jittered(half_hour, 0.1)).await;
    println!(
        "worst second: {:.1} % of the keys without jitter, {:.1} % with",
        without * 100.0,
        with * 100.0
    );
    assert!(with <= without / 10.0, "{with} with, {without} without");
}

#[tokio::test]
async fn warming_up_loads_what_is_not_there_in_the_right_format() {
    let server = RedisServer::start().await;
    let cache = node(&server).await;
    let mut raw = server.conn().await;
    let source = Source::new(Duration::ZERO);
    let _: () = ask(&mut raw, "SET", &["cache:shop:2", r#"{"id":2,"version":9}"#]).await;
    let work = || [KEY, "cache:shop:2"].map(|key| (key.to_owned(), source.load()));
    let done = cache.warm_up(Kind::LogicalExpiry, &policy(), work(), 4).await;
    assert_eq!((done.present, source.loads()), (2, 1));
    assert!(get(&mut raw, KEY).await.unwrap().contains("expireTime"));
    let _: () = ask(&mut raw, "FLUSHALL", &[]).await;
    source.set(|source| &source.broken, true);
    let done = cache.warm_up(Kind::Mutex, &policy(), work(), 4).await;
    assert_eq!((done.present, done.failed), (0, 2));
    source.set(|source| &source.broken, false);
    source.set(|source| &source.missing, true);
    let done = cache.warm_up(Kind::Mutex, &policy(), work(), 4).await;
    assert_eq!((done.present, done.absent, done.failed), (0, 2, 0));
    assert!(read(&cache, Kind::Mutex, &policy(), &source).await.unwrap().is_none());
}
