//! Keys, formats and times to live in Redis, as documented; and that every strategy reads all of
//! them.

use std::time::Duration;

use cache_aside::{Cache, ReadStrategy};
use redis::AsyncCommands;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    Broken, EXPIRED, KEY, LEASE, MUTEX, Product, Source, eventually, flush, get, node, nodes,
    policy, redis_server, spawn_version, version,
};

fn in_future() -> u64 {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    now.as_millis() as u64 + 60_000
}

#[tokio::test]
async fn values_are_plain_json_with_a_jittered_time_to_live() {
    let (server, mut raw) = redis_server().await;
    let mut ttls = Vec::new();
    for strategy in [
        ReadStrategy::CacheAside,
        ReadStrategy::NullCaching,
        ReadStrategy::Mutex,
        ReadStrategy::Layered,
    ] {
        flush(&mut raw).await;
        let cache = node(&server).await;
        version(&cache, strategy, &policy(), &Source::new(Duration::ZERO)).await;
        assert_eq!(
            get(&mut raw, KEY).await.unwrap(),
            r#"{"id":1,"version":1}"#,
            "{strategy}"
        );
        let remaining_ms: i64 = raw.pttl(KEY).await.unwrap();
        assert!(
            (26 * 60_000..=33 * 60_000).contains(&remaining_ms),
            "{strategy}: {remaining_ms} ms"
        );
        let keys: Vec<String> = raw.keys("*").await.unwrap();
        assert_eq!(keys, [KEY], "{strategy}: nothing else is left");
        ttls.push(remaining_ms);
    }
    // Jitter has a range of six minutes. Without it, they would differ by far less than a second.
    let spread = ttls.iter().max().unwrap() - ttls.iter().min().unwrap();
    assert!(spread > 1000, "no jitter: {ttls:?}");
}

#[tokio::test]
async fn logical_expiry_wraps_the_value_and_sets_no_time_to_live() {
    let (server, mut raw) = redis_server().await;
    let cache = node(&server).await;
    let source = Source::new(Duration::ZERO);
    version(&cache, ReadStrategy::LogicalExpiry, &policy(), &source).await;
    let text = get(&mut raw, KEY).await.unwrap();
    let wrapped: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(wrapped["data"], json!({"id": 1, "version": 1}));
    assert!(
        wrapped["expireTime"].as_u64().unwrap() > in_future() - 30_000,
        "{text}"
    );
    assert_eq!(wrapped.as_object().unwrap().len(), 2);
    assert_eq!(raw.pttl::<_, i64>(KEY).await.unwrap(), -1);
}

#[tokio::test]
async fn the_mutex_has_the_documented_key_and_expires_after_ten_seconds() {
    let (server, mut raw) = redis_server().await;
    let cache = node(&server).await;
    let source = Source::closed();
    let reader = spawn_version(&cache, ReadStrategy::Mutex, &policy(), &source);
    eventually("the load runs", async || source.running() == 1).await;
    assert!(get(&mut raw, MUTEX).await.is_some());
    let remaining_ms: i64 = raw.pttl(MUTEX).await.unwrap();
    assert!(
        (5_000..=10_000).contains(&remaining_ms),
        "{remaining_ms} ms"
    );
    assert!(get(&mut raw, LEASE).await.is_some());
    source.open();
    assert_eq!(reader.await.unwrap(), Some(1));
    assert_eq!(
        (get(&mut raw, MUTEX).await, get(&mut raw, LEASE).await),
        (None, None)
    );
}

/// What a key may hold, the version a read then returns, and whether it loads.
fn texts() -> Vec<(String, Option<u64>, bool)> {
    let product = json!({"id": 1, "version": 7});
    let wrapped = json!({"data": product, "expireTime": in_future()});
    let swapped = format!(r#"{{"expireTime":{},"data":{product}}}"#, in_future());
    vec![
        (product.to_string(), Some(7), false),
        (wrapped.to_string(), Some(7), false),
        (swapped, Some(7), false),
        (String::new(), None, false),
        ("invalid".to_owned(), Some(1), true),
        (r#"{"id":"x"}"#.to_owned(), Some(1), true),
        (r#"{"data":3,"expireTime":4}"#.to_owned(), Some(1), true),
    ]
}

#[tokio::test]
async fn every_strategy_reads_every_format_and_replaces_invalid_text() {
    let (server, mut raw) = redis_server().await;
    for strategy in ReadStrategy::ALL {
        for (text, answer, loads) in texts() {
            flush(&mut raw).await;
            let cache = node(&server).await;
            let source = Source::new(Duration::ZERO);
            let _: () = raw.set(KEY, &text).await.unwrap();
            assert_eq!(
                version(&cache, strategy, &policy(), &source).await,
                answer,
                "{strategy}: {text}"
            );
            assert_eq!(source.loads() == 1, loads, "{strategy}: {text}");
            assert_eq!(
                get(&mut raw, KEY).await.unwrap() != text,
                loads,
                "{strategy}: {text}"
            );
        }
    }
}

#[tokio::test]
async fn a_value_past_its_logical_expiry_is_missing_but_for_the_strategy_that_serves_it() {
    let (server, mut raw) = redis_server().await;
    for strategy in ReadStrategy::ALL {
        flush(&mut raw).await;
        let cache = node(&server).await;
        let source = Source::new(Duration::ZERO);
        source.change();
        let _: () = raw.set(KEY, EXPIRED).await.unwrap();
        let is_served = strategy == ReadStrategy::LogicalExpiry;
        let first = version(&cache, strategy, &policy(), &source).await;
        assert_eq!(first, Some(if is_served { 1 } else { 2 }), "{strategy}");
        eventually("the new value is in Redis", async || {
            get(&mut raw, KEY).await.as_deref() != Some(EXPIRED)
        })
        .await;
        let second = version(&cache, strategy, &policy(), &source).await;
        assert_eq!(second, Some(2), "{strategy}");
        assert_eq!(source.loads(), 1, "{strategy}");
    }
}

/// A value with the fields of the format that has an expiry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Voucher {
    data: Product,
    expire_time: u64,
}

#[tokio::test]
async fn a_value_with_the_fields_of_a_logical_expiry_is_read_back_whole() {
    let (server, mut raw) = redis_server().await;
    for expire_time in [5, in_future()] {
        let voucher = Voucher {
            data: Product { id: 1, version: 1 },
            expire_time,
        };
        for strategy in ReadStrategy::ALL {
            flush(&mut raw).await;
            let policy = policy();
            // Another node finds nothing in its memory.
            for cache in nodes(&server).await {
                for _ in 0..2 {
                    let loaded = voucher.clone();
                    let load = move || std::future::ready(Ok::<_, Broken>(Some(loaded.clone())));
                    let read = cache.read(strategy, KEY, &policy, load).await;
                    assert_eq!(**read.unwrap().unwrap(), voucher, "{strategy}");
                }
            }
            assert_eq!(policy.stats().loads, 1, "{strategy}");
            let text = get(&mut raw, KEY).await.unwrap();
            let written: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(written["data"], json!(voucher), "{strategy}: {text}");
            let remaining_ms: i64 = raw.pttl(KEY).await.unwrap();
            let expires = strategy != ReadStrategy::LogicalExpiry;
            assert_eq!(remaining_ms > 0, expires, "{strategy}: {remaining_ms} ms");
        }
    }
}

#[tokio::test]
async fn a_key_of_another_redis_type_is_read_from_the_source() {
    let (server, mut raw) = redis_server().await;
    let cache: Cache = node(&server).await;
    let source = Source::new(Duration::ZERO);
    let _: i64 = raw.lpush(KEY, "a list").await.unwrap();
    for _ in 0..10 {
        for strategy in ReadStrategy::ALL {
            let now = source.change();
            assert_eq!(
                version(&cache, strategy, &policy(), &source).await,
                Some(now),
                "{strategy}"
            );
        }
    }
    assert!(!cache.stats().breaker_open);
}

#[tokio::test]
async fn every_strategy_but_plain_cache_aside_caches_nulls() {
    let (server, mut raw) = redis_server().await;
    for strategy in ReadStrategy::ALL {
        flush(&mut raw).await;
        let nodes = nodes(&server).await;
        let source = Source::new(Duration::ZERO);
        source.set(|source| &source.missing, true);
        for turn in 0..20 {
            assert_eq!(
                version(&nodes[turn % 2], strategy, &policy(), &source).await,
                None
            );
        }
        if strategy == ReadStrategy::CacheAside {
            assert_eq!(source.loads(), 20, "a load per read");
            continue;
        }
        assert_eq!(source.loads(), 1, "{strategy}");
        assert_eq!(get(&mut raw, KEY).await.as_deref(), Some(""), "{strategy}");
        let remaining_ms: i64 = raw.pttl(KEY).await.unwrap();
        assert!(
            (100_000..=120_000).contains(&remaining_ms),
            "{strategy}: {remaining_ms} ms"
        );
        // The row is inserted, and its writer invalidates.
        source.set(|source| &source.missing, false);
        assert_eq!(
            nodes[0].invalidate(&[KEY]).await,
            cache_aside::InvalidationStatus::Delivered
        );
        assert_eq!(
            version(&nodes[0], strategy, &policy(), &source).await,
            Some(1),
            "{strategy}"
        );
    }
}
