//! The Bloom filter: never a wrong "no", and "maybe" whenever data may have been lost.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cache_aside::{BloomFillError, BloomFilter, BloomSize, Cache, CachePolicy, ReadStrategy};

use super::{Source, command, eventually, flush, node, nodes, policy, redis_server};
use testkit::redis_server::{RedisServer, Role};

const ROWS: u64 = 5_000;
const RATE: f64 = 0.01;

fn key(id: u64) -> String {
    format!("cache:product:{id}")
}

fn filter_of(cache: &Cache) -> BloomFilter {
    cache.bloom_filter("product", BloomSize::for_items(ROWS, RATE))
}

/// The keys of all rows, a thousand at a time.
async fn pages(last: Option<String>) -> Result<Vec<String>, Infallible> {
    let next = last.map_or(0, |last| {
        last.rsplit(':').next().unwrap().parse::<u64>().unwrap() + 1
    });
    Ok((next..ROWS.min(next + 1000)).map(key).collect())
}

/// How many of 1,000 absent ids may be contained.
async fn false_positives(filter: &BloomFilter) -> u32 {
    let mut count = 0;
    for id in 0..1000 {
        count += u32::from(filter.may_contain(&key(1_000_000 + id)).await);
    }
    count
}

#[tokio::test]
async fn every_row_is_contained_and_false_positives_are_few() {
    let server = RedisServer::start().await;
    let [filter, other_filter] = nodes(&server).await.map(|cache| filter_of(&cache));
    assert!(
        filter.may_contain("anything").await,
        "not filled yet: maybe"
    );
    assert_eq!(filter.fill(&pages).await.unwrap(), ROWS);
    assert_eq!(other_filter.fill(&pages).await.unwrap(), 0, "it is shared");
    for id in (0..ROWS).step_by(7) {
        assert!(other_filter.may_contain(&key(id)).await, "{id}");
    }
    let wrong = false_positives(&other_filter).await;
    println!("{wrong} false positives of 1,000 at a rate of {RATE}");
    assert!(wrong <= 30, "{wrong}");
    // A row that one node adds is visible to the other at once.
    for id in 2_000_000..2_000_100 {
        filter.add(&key(id)).await.unwrap();
        assert!(other_filter.may_contain(&key(id)).await);
    }
}

#[tokio::test]
async fn reads_of_absent_ids_are_filtered_and_store_no_nulls() {
    let (server, mut raw) = redis_server().await;
    let cache = node(&server).await;
    let filter = filter_of(&cache);
    filter.fill(&pages).await.unwrap();
    for strategy in ReadStrategy::ALL {
        let policy = CachePolicy {
            bloom_filter: Some(filter.clone()),
            ..policy()
        };
        let source = Source::new(Duration::ZERO);
        source.set(|source| &source.missing, true);
        for id in 0..1000 {
            let absent = key(1_000_000 + id);
            let answer = cache
                .read(strategy, &absent, &policy, source.load())
                .await
                .unwrap();
            assert!(answer.is_none());
        }
        let loads = source.loads() as u64;
        assert!(loads <= 30, "{strategy}: {loads}");
        let keys: u64 = command(&mut raw, "DBSIZE", &[]).await;
        assert!(keys <= 1 + 30, "{strategy}: {keys} keys");
        assert_eq!(
            policy.stats().filtered + policy.stats().null_hits + loads,
            1000,
            "{strategy}"
        );
        // Without the filter every read is a load. So it is the filter that kept the loads few above.
        let unfiltered = CachePolicy {
            bloom_filter: None,
            ..policy.clone()
        };
        for id in 0..100 {
            let absent = key(3_000_000 + id);
            cache
                .read(strategy, &absent, &unfiltered, source.load())
                .await
                .unwrap();
        }
        assert_eq!(source.loads() as u64, loads + 100, "{strategy}");
        flush(&mut raw).await;
        filter.fill(&pages).await.unwrap();
    }
}

/// A restarted server may lack the last second of its log, so its filter is not used.
#[tokio::test]
async fn a_filter_is_not_used_after_a_restart_until_it_is_filled_again() {
    let mut server = RedisServer::start_as(Role::Durable).await;
    let cache = node(&server).await;
    let filter = filter_of(&cache);
    filter.fill(&pages).await.unwrap();
    assert!(false_positives(&filter).await <= 30);
    server.restart().await;
    let mut raw = server.conn().await;
    let exists: u64 = command(&mut raw, "EXISTS", &[filter.key()]).await;
    assert_eq!(exists, 1, "the server still has the filter");
    eventually("Redis is in use", async || {
        filter.add(&key(1)).await.is_ok() && !cache.stats().breaker_open
    })
    .await;
    assert_eq!(false_positives(&filter).await, 1000);
    assert_eq!(filter.fill(&pages).await.unwrap(), ROWS);
    assert!(false_positives(&filter).await <= 30);
}

#[tokio::test]
async fn a_fill_during_which_data_is_lost_fails() {
    let server = RedisServer::start().await;
    let nodes = nodes(&server).await;
    let filter = filter_of(&nodes[0]);
    let other_filter = filter_of(&nodes[1]);
    let flushed = AtomicU64::new(0);
    for refiller in [None, Some(&other_filter)] {
        let end = filter
            .fill(&|last| lossy_pages(&server, &flushed, refiller, last))
            .await;
        assert!(matches!(end, Err(BloomFillError::Lost)), "{end:?}");
        assert_eq!(false_positives(&filter).await, 1000);
    }
    assert_eq!(flushed.load(Ordering::SeqCst), 2);
    // Both nodes at once, without a loss; on a busy machine a command may time out.
    eventually("both fill it", async || {
        let (a, b) = tokio::join!(filter.fill(&pages), other_filter.fill(&pages));
        for end in [&a, &b] {
            assert!(
                matches!(end, Ok(_) | Err(BloomFillError::Cache(_))),
                "{end:?}"
            );
        }
        a.is_ok() && b.is_ok()
    })
    .await;
    assert!(false_positives(&filter).await <= 30);
}

/// As [`pages`], but the server loses its data in the middle.
async fn lossy_pages(
    server: &RedisServer,
    flushed: &AtomicU64,
    refiller: Option<&BloomFilter>,
    last: Option<String>,
) -> Result<Vec<String>, Infallible> {
    if last.as_deref() == Some("cache:product:2999") {
        let mut raw = server
            .client()
            .get_multiplexed_async_connection()
            .await
            .unwrap();
        let _: () = redis::cmd("FLUSHALL").query_async(&mut raw).await.unwrap();
        flushed.fetch_add(1, Ordering::SeqCst);
        if let Some(refiller) = refiller {
            // Another node starts to fill it again, and does not finish.
            let end = refiller
                .fill(&async |_| Err::<Vec<String>, _>("broken"))
                .await;
            assert!(end.is_err());
        }
    }
    pages(last).await
}

#[tokio::test]
async fn the_background_task_fills_it_at_the_start_and_after_a_loss() {
    let (server, mut raw) = redis_server().await;
    let cache = node(&server).await;
    let filter = filter_of(&cache);
    cache.keep_filled(filter.clone(), Duration::from_millis(20), pages);
    for _ in 0..3 {
        eventually("filled", async || false_positives(&filter).await <= 30).await;
        flush(&mut raw).await;
    }
}

#[tokio::test]
async fn without_redis_it_answers_maybe_and_adding_fails() {
    let mut server = RedisServer::start().await;
    let cache = node(&server).await;
    let filter = filter_of(&cache);
    filter.fill(&pages).await.unwrap();
    server.kill();
    assert!(filter.may_contain(&key(1_000_001)).await);
    assert!(filter.add(&key(1)).await.is_err());
    assert!(filter.fill(&pages).await.is_err());
}
