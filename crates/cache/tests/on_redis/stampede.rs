//! Cache stampede: many readers on two nodes miss a hot key. How many of them load?

use std::sync::Arc;
use std::time::Duration;

use cache_aside::{Cache, CacheConfig, CachePolicy, ReadStrategy};
use redis::aio::MultiplexedConnection;
use tokio::task::JoinHandle;

use super::{
    EXPIRED, KEY, LEASE, MUTEX, Source, WAIT_LIMIT, command, eventually, get, node_with, patient,
    policy, read, redis_server, spawn_version, version,
};
use testkit::redis_server::RedisServer;

/// Readers on each of the two nodes.
const READERS: usize = 500;

/// How long a load takes.
const LOAD: Duration = Duration::from_millis(100);

/// Two nodes that allow as many loads as there are readers: the limit is not tested here.
async fn nodes(server: &RedisServer) -> [Cache; 2] {
    let config = CacheConfig {
        max_concurrent_loads: 2 * READERS,
        ..patient()
    };
    [
        node_with(server, config.clone()).await,
        node_with(server, config).await,
    ]
}

/// Starts all readers at once.
fn spawn_readers(
    nodes: &[Cache; 2],
    strategy: ReadStrategy,
    policy: &CachePolicy,
    source: &Arc<Source>,
) -> Vec<JoinHandle<Option<u64>>> {
    (0..2 * READERS)
        .map(|i| spawn_version(&nodes[i % 2], strategy, policy, source))
        .collect()
}

/// Waits until all readers have their answer.
async fn await_answers(readers: Vec<JoinHandle<Option<u64>>>) {
    let answers = tokio::time::timeout(WAIT_LIMIT, futures_util::future::try_join_all(readers));
    let versions = answers.await.expect("all are answered").unwrap();
    assert!(
        versions.iter().all(|version| *version == Some(1)),
        "{versions:?}"
    );
}

/// All readers at once, to their end.
async fn read_concurrently(nodes: &[Cache; 2], strategy: ReadStrategy, source: &Arc<Source>) {
    await_answers(spawn_readers(nodes, strategy, &policy(), source)).await;
}

async fn delete_keys(raw: &mut MultiplexedConnection) {
    let _: i64 = command(raw, "DEL", &[KEY, LEASE, MUTEX]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_readers_on_two_nodes_share_one_load() {
    let (server, mut raw) = redis_server().await;
    for strategy in [
        ReadStrategy::Mutex,
        ReadStrategy::LogicalExpiry,
        ReadStrategy::Layered,
    ] {
        let nodes = nodes(&server).await;
        delete_keys(&mut raw).await;
        let source = Source::closed();
        // A reader that missed the end of the load would wait this long.
        let policy = CachePolicy {
            wait_timeout: WAIT_LIMIT * 3,
            ..policy()
        };
        let readers = spawn_readers(&nodes, strategy, &policy, &source);
        // Of each node all readers but one share its load. On one node that reader loads, on the other it polls.
        eventually("all wait for the load", async || {
            let stats = policy.stats();
            stats.shared == 2 * READERS as u64 - 2 && stats.waits > 0 && source.running() == 1
        })
        .await;
        source.open();
        await_answers(readers).await;
        assert_eq!(source.loads(), 1, "{strategy}");
        assert_eq!(get(&mut raw, MUTEX).await, None, "{strategy}");
        assert_eq!(get(&mut raw, LEASE).await, None, "{strategy}");
    }
}

/// With the policy's default limits, on two nodes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_of_seconds_is_one_as_well() {
    let (server, mut raw) = redis_server().await;
    let nodes = nodes(&server).await;
    for strategy in [
        ReadStrategy::Mutex,
        ReadStrategy::LogicalExpiry,
        ReadStrategy::Layered,
    ] {
        delete_keys(&mut raw).await;
        let source = Source::new(Duration::from_millis(1500));
        read_concurrently(&nodes, strategy, &source).await;
        assert_eq!(source.loads(), 1, "{strategy}");
        for cache in &nodes {
            let _status = cache.invalidate(&[KEY]).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_mutex_many_readers_reach_the_source() {
    let (server, mut raw) = redis_server().await;
    for strategy in [ReadStrategy::CacheAside, ReadStrategy::NullCaching] {
        let nodes = nodes(&server).await;
        delete_keys(&mut raw).await;
        let source = Source::closed();
        let readers = spawn_readers(&nodes, strategy, &policy(), &source);
        eventually("each of them loads", async || {
            source.running() == 2 * READERS
        })
        .await;
        source.open();
        await_answers(readers).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_logically_expired_value_is_served_while_one_task_loads() {
    let (server, mut raw) = redis_server().await;
    let nodes = nodes(&server).await;
    for _ in 0..3 {
        let source = Source::new(LOAD);
        source.close();
        let _: () = command(&mut raw, "SET", &[KEY, EXPIRED]).await;
        // The load cannot end, and yet every reader gets an answer.
        read_concurrently(&nodes, ReadStrategy::LogicalExpiry, &source).await;
        source.open();
        eventually("the rebuild ends", async || {
            get(&mut raw, MUTEX).await.is_none()
        })
        .await;
        assert_eq!(source.loads(), 1);
        source.change();
        assert_eq!(
            version(&nodes[1], ReadStrategy::LogicalExpiry, &policy(), &source).await,
            Some(1)
        );
        assert_eq!(source.loads(), 1, "it is fresh again");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn layered_reads_refresh_ahead_of_expiry_without_waiting() {
    let (server, mut raw) = redis_server().await;
    let nodes = nodes(&server).await;
    let source = Source::new(LOAD);
    let policy = policy();
    version(&nodes[0], ReadStrategy::Layered, &policy, &source).await;
    for cache in &nodes {
        // Clear memory, and let the value in Redis be about to expire.
        let value = get(&mut raw, KEY).await.unwrap();
        assert_eq!(
            cache.invalidate(&[KEY]).await,
            cache_aside::InvalidationStatus::Delivered
        );
        let _: String = command(&mut raw, "SET", &[KEY, &value, "PX", "60000"]).await;
    }
    source.close();
    read_concurrently(&nodes, ReadStrategy::Layered, &source).await;
    source.open();
    eventually("the value is rebuilt", async || {
        let remaining_ms: i64 = command(&mut raw, "PTTL", &[KEY]).await;
        remaining_ms > 20 * 60_000
    })
    .await;
    assert_eq!(
        source.loads(),
        2,
        "the first, and one rebuild on both nodes"
    );
}

/// A value that is stale from the start would be rebuilt without end.
#[tokio::test]
async fn a_new_value_is_not_rebuilt_however_early_a_refresh_may_begin() {
    let server = RedisServer::start().await;
    let nodes = nodes(&server).await;
    let source = Source::new(Duration::ZERO);
    let policy = CachePolicy {
        refresh_ahead: Duration::from_secs(3600),
        // Every read asks Redis.
        local_ttl: Duration::ZERO,
        ..policy()
    };
    for cache in nodes.iter().cycle().take(6) {
        version(cache, ReadStrategy::Layered, &policy, &source).await;
    }
    for cache in &nodes {
        // Ends the rebuilds under way.
        cache.shutdown().await;
    }
    assert_eq!(source.loads(), 1);
}

#[tokio::test]
async fn reads_from_memory_send_no_command() {
    let server = RedisServer::start().await;
    let [cache, _] = nodes(&server).await;
    let source = Source::new(Duration::ZERO);
    let policy = CachePolicy {
        local_ttl: Duration::from_secs(60),
        ..policy()
    };
    read(&cache, ReadStrategy::Layered, &policy, &source)
        .await
        .unwrap();
    let mut raw = server.conn().await;
    let _: String = command(&mut raw, "CONFIG", &["RESETSTAT"]).await;
    let first = read(&cache, ReadStrategy::Layered, &policy, &source)
        .await
        .unwrap()
        .unwrap();
    for _ in 0..1000 {
        let again = read(&cache, ReadStrategy::Layered, &policy, &source)
            .await
            .unwrap()
            .unwrap();
        assert!(Arc::ptr_eq(&first, &again), "the same value, not a copy");
    }
    let commands: String = command(&mut raw, "INFO", &["commandstats"]).await;
    assert!(!commands.contains("cmdstat_get"), "{commands}");
    assert_eq!((source.loads(), policy.stats().local_hits), (1, 1001));
    // It is rendered once.
    let body = first.rendered(|product| format!("version {}", product.version).into());
    assert_eq!(first.rendered(|_| panic!("rendered twice")), body);
}
