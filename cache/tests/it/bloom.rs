//! The Bloom filter: sure when it says no, honest when it cannot know, kept through everything.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cache_aside::{Bloom, BloomSize, Cache, FillError, Kind, Policy};

use super::{Source, ask, eventually, node, nodes, policy};
use crate::support::redis_server::RedisServer;

const ROWS: u64 = 5_000;
const RATE: f64 = 0.01;

fn key(id: u64) -> String {
    format!("cache:shop:{id}")
}

fn bloom(cache: &Cache) -> Bloom {
    cache.bloom("shop", BloomSize::for_items(ROWS, RATE))
}

/// Rows 0 to ROWS, a thousand at a time.
async fn pages(last: Option<String>) -> Result<Vec<String>, Infallible> {
    let next = last.map_or(0, |last| last.rsplit(':').next().unwrap().parse::<u64>().unwrap() + 1);
    Ok((next..ROWS.min(next + 1000)).map(key).collect())
}

/// How many of 1,000 absent ids it lets through.
async fn let_through(bloom: &Bloom) -> u32 {
    let mut through = 0;
    for id in 0..1000 {
        through += u32::from(bloom.may_contain(&key(1_000_000 + id)).await);
    }
    through
}

#[tokio::test]
async fn it_knows_every_row_and_lets_few_others_through() {
    let server = RedisServer::start().await;
    let [one, two] = nodes(&server).await.map(|cache| bloom(&cache));
    assert!(one.may_contain("anything").await, "not filled yet: maybe");
    assert_eq!(one.fill(&pages).await.unwrap(), ROWS);
    assert_eq!(two.fill(&pages).await.unwrap(), 0, "it is shared");
    for id in (0..ROWS).step_by(7) {
        assert!(two.may_contain(&key(id)).await, "{id}");
    }
    let through = let_through(&two).await;
    println!("{through} of 1,000 absent ids let through at {RATE}");
    assert!(through <= 30, "{through}");
    // A row that one node adds is known to the other at once.
    for id in 2_000_000..2_000_100 {
        one.add(&key(id)).await.unwrap();
        assert!(two.may_contain(&key(id)).await);
    }
}

#[tokio::test]
async fn reads_of_absent_ids_stop_at_the_filter_and_leave_no_key() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let cache = node(&server).await;
    let filter = bloom(&cache);
    filter.fill(&pages).await.unwrap();
    for kind in Kind::ALL {
        let policy = Policy { filter: Some(filter.clone()), ..policy() };
        let source = Source::new(Duration::ZERO);
        source.set(|source| &source.missing, true);
        for id in 0..1000 {
            let absent = key(1_000_000 + id);
            let answer = cache.read(kind, &absent, &policy, source.load()).await.unwrap();
            assert!(answer.is_none());
        }
        let loads = source.loads() as u64;
        assert!(loads <= 30, "{kind}: {loads}");
        let keys: u64 = ask(&mut raw, "DBSIZE", &[]).await;
        assert!(keys <= 1 + 30, "{kind}: {keys} keys");
        assert_eq!(policy.stats().filtered + policy.stats().null_hits + loads, 1000, "{kind}");
        // Without it, each of them is a load.
        let unfiltered = Policy { filter: None, ..policy.clone() };
        for id in 0..100 {
            let absent = key(3_000_000 + id);
            cache.read(kind, &absent, &unfiltered, source.load()).await.unwrap();
        }
        assert_eq!(source.loads() as u64, loads + 100, "{kind}: the check cannot fail");
        let _: () = ask(&mut raw, "FLUSHALL", &[]).await;
        filter.fill(&pages).await.unwrap();
    }
}

#[tokio::test]
async fn a_filter_that_was_lost_answers_maybe_until_it_is_filled_again() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let cache = node(&server).await;
    let filter = bloom(&cache);
    filter.fill(&pages).await.unwrap();
    assert!(let_through(&filter).await <= 30);
    let _: () = ask(&mut raw, "FLUSHALL", &[]).await;
    // Somebody adds to what is not there: still not to be believed.
    filter.add(&key(77)).await.unwrap();
    assert_eq!(let_through(&filter).await, 1000);
    assert_eq!(filter.fill(&pages).await.unwrap(), ROWS);
    assert!(let_through(&filter).await <= 30);
}

/// A restarted server may lack the last second of its log, and its filter is not believed.
#[tokio::test]
async fn a_restarted_server_is_not_believed_until_filled_again() {
    let mut server = RedisServer::start_with(true).await;
    let cache = node(&server).await;
    let filter = bloom(&cache);
    filter.fill(&pages).await.unwrap();
    assert!(let_through(&filter).await <= 30);
    server.restart().await;
    let mut raw = server.conn().await;
    let exists: u64 = ask(&mut raw, "EXISTS", &[filter.key()]).await;
    assert_eq!(exists, 1, "the server still has the filter");
    eventually("Redis is in use", async || {
        filter.add(&key(1)).await.is_ok() && !cache.stats().breaker_open
    })
    .await;
    assert_eq!(let_through(&filter).await, 1000);
    assert_eq!(filter.fill(&pages).await.unwrap(), ROWS);
    assert!(let_through(&filter).await <= 30);
}

#[tokio::test]
async fn a_filling_during_which_data_is_lost_does_not_count() {
    let server = RedisServer::start().await;
    let nodes = nodes(&server).await;
    let (one, two) = (bloom(&nodes[0]), bloom(&nodes[1]));
    let flushed = Arc::<AtomicU64>::default();
    let lossy = |refill: bool| {
        let (flushed, two, url) = (flushed.clone(), two.clone(), server.client());
        move |last: Option<String>| {
            let (flushed, two, url) = (flushed.clone(), two.clone(), url.clone());
            async move {
                if last.as_deref() == Some("cache:shop:2999") {
                    let mut raw = url.get_multiplexed_async_connection().await.unwrap();
                    let _: () = redis::cmd("FLUSHALL").query_async(&mut raw).await.unwrap();
                    flushed.fetch_add(1, Ordering::SeqCst);
                    if refill {
                        // Another node begins anew, and is not done yet.
                        let nothing = async |_: Option<String>| Err::<Vec<String>, _>("broken");
                        assert!(two.fill(&nothing).await.is_err());
                    }
                }
                pages(last).await
            }
        }
    };
    for refill in [false, true] {
        let end = one.fill(&lossy(refill)).await;
        assert!(matches!(end, Err(FillError::Lost)), "{end:?}");
        assert_eq!(let_through(&one).await, 1000);
    }
    assert_eq!(flushed.load(Ordering::SeqCst), 2);
    // Both at once, and both in peace; on a busy machine Redis may be slow to answer one of them.
    eventually("both fill it", async || {
        let (a, b) = tokio::join!(one.fill(&pages), two.fill(&pages));
        for end in [&a, &b] {
            assert!(matches!(end, Ok(_) | Err(FillError::Cache(_))), "{end:?}");
        }
        a.is_ok() && b.is_ok()
    })
    .await;
    assert!(let_through(&one).await <= 30);
}

#[tokio::test]
async fn the_background_task_fills_it_at_the_start_and_after_a_loss() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let cache = node(&server).await;
    let filter = bloom(&cache);
    cache.keep_filled(filter.clone(), Duration::from_millis(20), pages);
    for _ in 0..3 {
        eventually("filled", async || let_through(&filter).await <= 30).await;
        let _: () = ask(&mut raw, "FLUSHALL", &[]).await;
    }
}

#[tokio::test]
async fn without_redis_it_says_maybe_and_adding_says_so() {
    let mut server = RedisServer::start().await;
    let cache = node(&server).await;
    let filter = bloom(&cache);
    filter.fill(&pages).await.unwrap();
    server.kill();
    assert!(filter.may_contain(&key(1_000_001)).await);
    assert!(filter.add(&key(1)).await.is_err());
    assert!(filter.fill(&pages).await.is_err());
}
