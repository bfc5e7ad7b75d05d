//! Outages of Redis: reads go to the source, a bounded number at a time, without waiting for Redis,
//! and return to Redis by themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cache_aside::{Cache, CacheConfig, CachePolicy, ReadError, ReadStrategy};

use super::{Source, eventually, node_with, policy, read, spawn_version, version};
use testkit::redis_server::RedisServer;

const MAX_LOADS: usize = 4;

/// The timeout of a Redis command. A read that does not wait for Redis takes far less, also on a busy machine.
const REDIS_TIMEOUT: Duration = Duration::from_secs(2);

fn config() -> CacheConfig {
    CacheConfig {
        redis_timeout: REDIS_TIMEOUT,
        max_concurrent_loads: MAX_LOADS,
        ..CacheConfig::default()
    }
}

/// Readers of many keys that run until they are stopped.
struct BackgroundReads {
    state: Arc<State>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    stop: AtomicBool,
    reads: AtomicU64,
    /// Reads that begin while this is set are timed.
    timed: AtomicBool,
    slowest_micros: AtomicU64,
}

impl BackgroundReads {
    fn start(
        cache: &Cache,
        strategy: ReadStrategy,
        policy: &CachePolicy,
        source: &Arc<Source>,
    ) -> Self {
        let state = Arc::<State>::default();
        let read = |task: u64| {
            let cache = cache.clone();
            let policy = policy.clone();
            let source = source.clone();
            let state = state.clone();
            tokio::spawn(async move {
                let mut step = task;
                while !state.stop.load(Ordering::SeqCst) {
                    step += 7;
                    let key = format!("cache:product:{}", step % 100);
                    let is_timed = state.timed.load(Ordering::SeqCst);
                    let started = Instant::now();
                    let answer = cache.read(strategy, &key, &policy, source.load()).await;
                    answer
                        .expect("an answer, whatever Redis does")
                        .expect("the row exists");
                    let micros = if is_timed {
                        started.elapsed().as_micros() as u64
                    } else {
                        0
                    };
                    state.slowest_micros.fetch_max(micros, Ordering::SeqCst);
                    state.reads.fetch_add(1, Ordering::SeqCst);
                }
            })
        };
        let tasks = (0..8).map(read).collect();
        Self { state, tasks }
    }

    /// Waits for that many more reads.
    async fn wait_for_reads(&self, reads: u64) {
        let done = || self.state.reads.load(Ordering::SeqCst);
        let goal = done() + reads;
        eventually("reads go on", async || done() >= goal).await;
    }

    /// The longest of 500 reads that began now or later.
    async fn slowest(&self) -> Duration {
        // By then, readers that were waiting for Redis and their followers are done.
        self.wait_for_reads(200).await;
        self.state.timed.store(true, Ordering::SeqCst);
        self.wait_for_reads(500).await;
        self.state.timed.store(false, Ordering::SeqCst);
        Duration::from_micros(self.state.slowest_micros.swap(0, Ordering::SeqCst))
    }

    async fn end(self) {
        self.state.stop.store(true, Ordering::SeqCst);
        for task in self.tasks {
            task.await.expect("every read was answered");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_survive_a_killed_redis_and_return_to_it() {
    let mut server = RedisServer::start().await;
    for strategy in ReadStrategy::ALL {
        let cache = node_with(&server, config()).await;
        let source = Source::new(Duration::from_millis(1));
        let policy = policy();
        let load = BackgroundReads::start(&cache, strategy, &policy, &source);
        load.wait_for_reads(500).await;
        server.kill();
        eventually("the breaker opens", async || cache.stats().breaker_open).await;
        let slowest = load.slowest().await;
        assert!(
            slowest < REDIS_TIMEOUT,
            "{strategy}: a reader waited for Redis: {slowest:?}"
        );
        server.restart().await;
        let hits = || policy.stats().redis_hits + policy.stats().local_hits;
        let before = hits();
        eventually("the cache is in use again", async || hits() > before + 100).await;
        println!("{strategy}: slowest read of the outage {slowest:?}");
        let stats = cache.stats();
        assert!(
            !stats.breaker_open && stats.counts.breaker_opened >= 1,
            "{strategy}: {stats:?}"
        );
        load.end().await;
        let most_running = source.most_running.load(Ordering::SeqCst);
        assert!(
            most_running <= MAX_LOADS,
            "{strategy}: {most_running} loads at once"
        );
        assert_eq!(cache.stats().loads_running, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_redis_costs_each_reader_one_timeout_at_most() {
    let server = RedisServer::start().await;
    let cache = node_with(&server, config()).await;
    let source = Source::new(Duration::from_millis(1));
    let policy = policy();
    let load = BackgroundReads::start(&cache, ReadStrategy::Layered, &policy, &source);
    load.wait_for_reads(500).await;
    server.pause();
    eventually("the breaker opens", async || cache.stats().breaker_open).await;
    let slowest = load.slowest().await;
    assert!(
        slowest < REDIS_TIMEOUT,
        "a reader waited for Redis: {slowest:?}"
    );
    server.resume();
    eventually("the breaker closes", async || !cache.stats().breaker_open).await;
    eventually("memory is in use", async || cache.stats().local_enabled).await;
    load.end().await;
}

#[tokio::test]
async fn the_circuit_breaker_closes_without_traffic() {
    let mut server = RedisServer::start().await;
    let cache = node_with(&server, config()).await;
    let source = Source::new(Duration::ZERO);
    server.kill();
    for _ in 0..10 {
        assert_eq!(
            version(&cache, ReadStrategy::Mutex, &policy(), &source).await,
            Some(1)
        );
    }
    assert!(cache.stats().breaker_open);
    server.restart().await;
    eventually("closed", async || !cache.stats().breaker_open).await;
}

#[tokio::test]
async fn a_redis_whose_script_does_not_end_is_left_alone() {
    let server = RedisServer::start().await;
    let cache = node_with(&server, config()).await;
    let source = Source::new(Duration::ZERO);
    let policy = policy();
    let mut redis = server.conn().await;
    let mut script_connection = server.conn().await;
    let limit = ["SET", "lua-time-limit", "1"];
    redis::cmd("CONFIG")
        .arg(&limit)
        .exec_async(&mut redis)
        .await
        .expect("a limit");
    let endless = redis::cmd("EVAL")
        .arg("while true do end")
        .arg(0)
        .to_owned();
    let endless = tokio::spawn(async move { endless.exec_async(&mut script_connection).await });
    eventually("the breaker opens", async || {
        assert_eq!(
            version(&cache, ReadStrategy::CacheAside, &policy, &source).await,
            Some(1)
        );
        cache.stats().breaker_open
    })
    .await;
    redis::cmd("SCRIPT")
        .arg("KILL")
        .exec_async(&mut redis)
        .await
        .expect("an end");
    endless.await.expect("no panic").expect_err("it was killed");
}

#[tokio::test]
async fn without_redis_a_hot_key_is_loaded_once_per_process() {
    let mut server = RedisServer::start().await;
    let cache = node_with(&server, config()).await;
    server.kill();
    for strategy in ReadStrategy::ALL {
        let source = Source::new(Duration::from_millis(100));
        let readers: Vec<_> = (0..100)
            .map(|_| spawn_version(&cache, strategy, &policy(), &source))
            .collect();
        for reader in readers {
            assert_eq!(reader.await.unwrap(), Some(1));
        }
        // The first reads may find the circuit breaker still closed.
        assert!(source.loads() <= 3, "{strategy}: {}", source.loads());
    }
}

#[tokio::test]
async fn loads_beyond_the_limit_fail_after_the_queue_timeout() {
    let server = RedisServer::start().await;
    let config = CacheConfig {
        max_concurrent_loads: 2,
        load_queue_timeout: Duration::from_millis(100),
        ..CacheConfig::default()
    };
    let cache = node_with(&server, config).await;
    let source = Source::closed();
    let slow: Vec<_> = (0..2)
        .map(|id| {
            let cache = cache.clone();
            let source = source.clone();
            let key = format!("cache:product:slow:{id}");
            tokio::spawn(async move {
                cache
                    .read(ReadStrategy::Layered, &key, &policy(), source.load())
                    .await
            })
        })
        .collect();
    eventually("both run", async || cache.stats().loads_running == 2).await;
    let answer = read(&cache, ReadStrategy::Layered, &policy(), &source).await;
    assert!(matches!(answer, Err(ReadError::Overloaded)), "{answer:?}");
    source.open();
    for read in slow {
        assert!(read.await.unwrap().unwrap().is_some());
    }
    assert!(
        read(&cache, ReadStrategy::Layered, &policy(), &source)
            .await
            .unwrap()
            .is_some()
    );
    assert_eq!(source.most_running.load(Ordering::SeqCst), 2);
}
