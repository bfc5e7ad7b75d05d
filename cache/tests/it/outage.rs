//! Redis away: reads go to the source, a bounded number at a time, without waiting for Redis, and
//! come back by themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cache_aside::{Cache, CacheConfig, Kind, Policy, ReadError};

use super::{Source, eventually, node_with, policy, read, version};
use crate::support::redis_server::RedisServer;

const MAX_LOADS: usize = 4;

fn config() -> CacheConfig {
    CacheConfig { max_loads: MAX_LOADS, ..CacheConfig::default() }
}

/// Readers of many keys that go on until told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    reads: Arc<AtomicU64>,
    /// Reads that begin while this is set are timed.
    timed: Arc<AtomicBool>,
    slowest_micros: Arc<AtomicU64>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    fn start(cache: &Cache, kind: Kind, policy: &Policy, source: &Arc<Source>) -> Self {
        let (stop, reads) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (timed, slowest_micros) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let tasks = (0..8)
            .map(|task| {
                let (cache, policy, source) = (cache.clone(), policy.clone(), source.clone());
                let (stop, reads) = (stop.clone(), reads.clone());
                let (timed, slowest) = (timed.clone(), slowest_micros.clone());
                tokio::spawn(async move {
                    let mut turn: u64 = task;
                    while !stop.load(Ordering::SeqCst) {
                        turn += 7;
                        let key = format!("cache:shop:{}", turn % 100);
                        let (is_timed, started) = (timed.load(Ordering::SeqCst), Instant::now());
                        let answer = cache.read(kind, &key, &policy, source.load()).await;
                        answer.expect("an answer, whatever Redis does").expect("the row exists");
                        let micros = started.elapsed().as_micros() as u64;
                        slowest.fetch_max(if is_timed { micros } else { 0 }, Ordering::SeqCst);
                        reads.fetch_add(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        Self { stop, reads, timed, slowest_micros, tasks }
    }

    /// Wait for so many more reads.
    async fn more(&self, reads: u64) {
        let goal = self.reads.load(Ordering::SeqCst) + reads;
        eventually("reads go on", async || self.reads.load(Ordering::SeqCst) >= goal).await;
    }

    /// The longest of 500 reads that began now or later.
    async fn slowest(&self) -> Duration {
        // Readers that were waiting for Redis, and those who joined them, are through by then.
        self.more(200).await;
        self.timed.store(true, Ordering::SeqCst);
        self.more(500).await;
        self.timed.store(false, Ordering::SeqCst);
        Duration::from_micros(self.slowest_micros.swap(0, Ordering::SeqCst))
    }

    async fn end(self) {
        self.stop.store(true, Ordering::SeqCst);
        for task in self.tasks {
            task.await.expect("every read was answered");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_under_load_and_back() {
    let mut server = RedisServer::start().await;
    for kind in Kind::ALL {
        let cache = node_with(&server, config()).await;
        let (source, policy) = (Source::new(Duration::from_millis(1)), policy());
        let load = Load::start(&cache, kind, &policy, &source);
        load.more(500).await;
        server.kill();
        eventually("the breaker opens", async || cache.stats().breaker_open).await;
        let slowest = load.slowest().await;
        assert!(
            slowest < Duration::from_millis(250),
            "{kind}: nobody waits for Redis: {slowest:?}"
        );
        server.restart().await;
        let back = Instant::now();
        let hits = || policy.stats().redis_hits + policy.stats().local_hits;
        let before = hits();
        eventually("the cache is in use again", async || hits() > before + 100).await;
        println!(
            "{kind}: slowest read of the outage {slowest:?}, in use {:?} after",
            back.elapsed()
        );
        assert!(back.elapsed() < Duration::from_secs(3), "{kind}: {:?}", back.elapsed());
        let stats = cache.stats();
        assert!(!stats.breaker_open && stats.counts.breaker_opened >= 1, "{kind}: {stats:?}");
        load.end().await;
        let most = source.most_running.load(Ordering::SeqCst);
        assert!(most <= MAX_LOADS, "{kind}: {most} loads at once");
        assert_eq!(cache.stats().loads_running, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_under_load_costs_each_reader_one_time_out_at_most() {
    let server = RedisServer::start().await;
    let cache = node_with(&server, config()).await;
    let (source, policy) = (Source::new(Duration::from_millis(1)), policy());
    let load = Load::start(&cache, Kind::Layered, &policy, &source);
    load.more(500).await;
    server.pause();
    eventually("the breaker opens", async || cache.stats().breaker_open).await;
    let slowest = load.slowest().await;
    assert!(slowest < Duration::from_millis(250), "nobody waits for Redis: {slowest:?}");
    server.resume();
    let back = Instant::now();
    eventually("the breaker closes", async || !cache.stats().breaker_open).await;
    eventually("memory is in use", async || cache.stats().local_trusted).await;
    println!("slowest read of the pause {slowest:?}, back {:?} after it", back.elapsed());
    assert!(back.elapsed() < Duration::from_secs(2), "{:?}", back.elapsed());
    load.end().await;
}

/// Recovery needs no traffic.
#[tokio::test]
async fn the_breaker_closes_by_itself() {
    let mut server = RedisServer::start().await;
    let cache = node_with(&server, config()).await;
    let source = Source::new(Duration::ZERO);
    server.kill();
    for _ in 0..10 {
        assert_eq!(version(&cache, Kind::Mutex, &policy(), &source).await, Some(1));
    }
    assert!(cache.stats().breaker_open);
    server.restart().await;
    let back = Instant::now();
    eventually("closed", async || !cache.stats().breaker_open).await;
    assert!(back.elapsed() < Duration::from_secs(2), "{:?}", back.elapsed());
}

#[tokio::test]
async fn one_load_a_process_for_a_hot_key_without_redis() {
    let mut server = RedisServer::start().await;
    let cache = node_with(&server, config()).await;
    server.kill();
    for kind in Kind::ALL {
        let source = Source::new(Duration::from_millis(100));
        let readers: Vec<_> = (0..100)
            .map(|_| {
                let (cache, source) = (cache.clone(), source.clone());
                tokio::spawn(async move { version(&cache, kind, &policy(), &source).await })
            })
            .collect();
        for reader in readers {
            assert_eq!(reader.await.unwrap(), Some(1));
        }
        // The first ones may meet a Redis that is not yet known to be away.
        assert!(source.loads() <= 3, "{kind}: {}", source.loads());
    }
}

#[tokio::test]
async fn more_loads_than_allowed_are_refused_after_a_bounded_wait() {
    let server = RedisServer::start().await;
    let wait = Duration::from_millis(100);
    let config = CacheConfig { max_loads: 2, load_wait: wait, ..CacheConfig::default() };
    let cache = node_with(&server, config).await;
    let source = Source::new(Duration::ZERO);
    source.set(|source| &source.closed, true);
    let slow: Vec<_> = (0..2)
        .map(|id| {
            let (cache, source) = (cache.clone(), source.clone());
            let key = format!("cache:shop:slow:{id}");
            tokio::spawn(async move { cache.read_layered(&key, &policy(), source.load()).await })
        })
        .collect();
    eventually("both run", async || cache.stats().loads_running == 2).await;
    let started = Instant::now();
    let answer = read(&cache, Kind::Layered, &policy(), &source).await;
    assert!(matches!(answer, Err(ReadError::Overloaded)), "{answer:?}");
    assert!(started.elapsed() < wait * 5, "{:?}", started.elapsed());
    source.set(|source| &source.closed, false);
    for read in slow {
        assert!(read.await.unwrap().unwrap().is_some());
    }
    assert!(read(&cache, Kind::Layered, &policy(), &source).await.unwrap().is_some());
    assert_eq!(source.most_running.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn what_is_cached_is_read_without_the_source() {
    let server = RedisServer::start().await;
    let cache = node_with(&server, config()).await;
    let source = Source::new(Duration::ZERO);
    for kind in Kind::ALL {
        version(&cache, kind, &policy(), &source).await;
        source.set(|source| &source.broken, true);
        assert_eq!(version(&cache, kind, &policy(), &source).await, Some(1), "{kind}");
        source.set(|source| &source.broken, false);
    }
}

#[tokio::test]
async fn setting_a_value_says_when_it_could_not() {
    let mut server = RedisServer::start().await;
    let cache = node_with(&server, config()).await;
    server.kill();
    let shop = super::Shop { id: 1, version: 1 };
    let ttl = cache_aside::Ttl::exact(Duration::from_secs(1));
    assert!(cache.set(super::KEY, &shop, ttl).await.is_err());
    assert!(cache.set_with_logical_expiry(super::KEY, &shop, ttl).await.is_err());
}
