//! Breakdown: a hot key is gone, and a crowd on two nodes wants it. How many loads, how long a wait.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cache_aside::{Cache, CacheConfig, Kind, Ttl};
use redis::aio::MultiplexedConnection;

use super::{KEY, LEASE, MUTEX, Source, ask, eventually, get, node_with, policy, read, version};
use crate::support::redis_server::RedisServer;

/// Readers on each of the two nodes.
const READERS: usize = 500;

/// What a load takes.
const LOAD: Duration = Duration::from_millis(100);

/// Two nodes that allow as many loads as there are readers: the limit is not what is tested.
async fn nodes(server: &RedisServer) -> [Cache; 2] {
    let config = CacheConfig { max_loads: 2 * READERS, ..CacheConfig::default() };
    [node_with(server, config.clone()).await, node_with(server, config).await]
}

/// Everybody reads at once; returns the longest wait.
async fn crowd(nodes: &[Cache; 2], kind: Kind, source: &Arc<Source>) -> Duration {
    let policy = policy();
    let tasks: Vec<_> = (0..2 * READERS)
        .map(|i| {
            let (cache, policy, source) = (nodes[i % 2].clone(), policy.clone(), source.clone());
            tokio::spawn(async move {
                let started = Instant::now();
                assert_eq!(version(&cache, kind, &policy, &source).await, Some(1));
                started.elapsed()
            })
        })
        .collect();
    let mut longest = Duration::ZERO;
    for task in tasks {
        longest = longest.max(task.await.unwrap());
    }
    longest
}

async fn forget_everything(raw: &mut MultiplexedConnection) {
    let _: i64 = ask(raw, "DEL", &[KEY, LEASE, MUTEX]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_crowd_on_two_nodes_one_loads() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    for kind in [Kind::Mutex, Kind::LogicalExpiry, Kind::Layered] {
        // A busy machine may hold somebody up once, not three times.
        let mut waits = Vec::new();
        for _ in 0..3 {
            let nodes = nodes(&server).await;
            forget_everything(&mut raw).await;
            let source = Source::new(LOAD);
            waits.push(crowd(&nodes, kind, &source).await);
            assert_eq!(source.loads(), 1, "{kind}");
            assert_eq!(get(&mut raw, MUTEX).await, None, "{kind}");
            assert_eq!(get(&mut raw, LEASE).await, None, "{kind}");
        }
        let shortest = waits.iter().min().unwrap();
        assert!(*shortest < LOAD + Duration::from_millis(50), "{kind}: {waits:?}");
        println!("{kind}: 1 load, longest waits {waits:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_mutex_or_memory_the_crowd_reaches_the_source() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    for kind in [Kind::CacheAside, Kind::NullCaching] {
        let nodes = nodes(&server).await;
        forget_everything(&mut raw).await;
        let source = Source::new(LOAD);
        crowd(&nodes, kind, &source).await;
        assert!(source.loads() > 200, "{kind}: {} loads; the check cannot fail", source.loads());
        println!("{kind}: {} loads", source.loads());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn past_its_logical_expiry_a_value_is_served_while_one_task_loads() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let nodes = nodes(&server).await;
    let shop = super::Shop { id: 1, version: 1 };
    for _ in 0..3 {
        let source = Source::new(LOAD);
        source.set(|source| &source.closed, true);
        let expired = Ttl::exact(Duration::from_millis(1));
        nodes[0].set_with_logical_expiry(KEY, &shop, expired).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
        // The load cannot end, and yet everybody is answered.
        crowd(&nodes, Kind::LogicalExpiry, &source).await;
        source.set(|source| &source.closed, false);
        eventually("the rebuild ends", async || get(&mut raw, MUTEX).await.is_none()).await;
        assert_eq!(source.loads(), 1);
        source.change();
        assert_eq!(version(&nodes[1], Kind::LogicalExpiry, &policy(), &source).await, Some(1));
        assert_eq!(source.loads(), 1, "it is fresh again");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn layered_reads_rebuild_ahead_of_expiry_and_nobody_waits() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let nodes = nodes(&server).await;
    let source = Source::new(LOAD);
    let policy = policy();
    version(&nodes[0], Kind::Layered, &policy, &source).await;
    for cache in &nodes {
        // Forget what is in memory, keep what is in Redis, which is about to expire.
        let value = get(&mut raw, KEY).await.unwrap();
        assert_eq!(cache.invalidate(&[KEY]).await, cache_aside::Delivery::Done);
        let _: String = ask(&mut raw, "SET", &[KEY, &value, "PX", "60000"]).await;
    }
    source.set(|source| &source.closed, true);
    crowd(&nodes, Kind::Layered, &source).await;
    source.set(|source| &source.closed, false);
    eventually("it was rebuilt", async || {
        let left: i64 = ask(&mut raw, "PTTL", &[KEY]).await;
        left > 20 * 60_000
    })
    .await;
    assert_eq!(source.loads(), 2, "the first, and one rebuild on both nodes");
}

#[tokio::test]
async fn hot_reads_in_memory_ask_nobody() {
    let server = RedisServer::start().await;
    let [cache, _] = nodes(&server).await;
    let source = Source::new(Duration::ZERO);
    let policy = cache_aside::Policy { local_ttl: Duration::from_secs(60), ..policy() };
    read(&cache, Kind::Layered, &policy, &source).await.unwrap();
    let mut raw = server.conn().await;
    let _: String = ask(&mut raw, "CONFIG", &["RESETSTAT"]).await;
    let first = read(&cache, Kind::Layered, &policy, &source).await.unwrap().unwrap();
    for _ in 0..1000 {
        let again = read(&cache, Kind::Layered, &policy, &source).await.unwrap().unwrap();
        assert!(Arc::ptr_eq(&first, &again), "the same value, not a copy");
    }
    let commands: String = ask(&mut raw, "INFO", &["commandstats"]).await;
    assert!(!commands.contains("cmdstat_get"), "{commands}");
    assert_eq!((source.loads(), policy.stats().local_hits), (1, 1001));
    // The reply is rendered once.
    let body = first.body(|shop| format!("version {}", shop.version).into());
    assert_eq!(first.body(|_| panic!("rendered twice")), body);
}
