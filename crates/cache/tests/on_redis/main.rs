//! Tests against real Redis servers. Two `Cache`s on one server are two nodes; the database is a
//! [`Source`] that counts its queries.

#![allow(clippy::unwrap_used)]
#![allow(dead_code)]

mod bloom;
mod cluster;
mod consistency;
mod invalidation;
mod leases;
mod load_failures;
mod logical_expiry;
mod outage;
mod rights;
mod stampede;
mod subscription;
mod wire;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use cache_aside::{Cache, CacheConfig, CachePolicy, ReadResult, ReadStrategy, Redis};
use redis::aio::MultiplexedConnection;
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use testkit::raw::query as command;
use testkit::redis_server::RedisServer;

/// The key of most tests.
const KEY: &str = "cache:product:1";
/// Its rebuild mutex.
const MUTEX: &str = "{cache:product:1}:lock";
/// Its lease.
const LEASE: &str = "{cache:product:1}:lease";

/// A value of the row's first version, past its logical expiry.
const EXPIRED: &str = r#"{"data":{"id":1,"version":1},"expireTime":5}"#;

/// How long to wait for a condition.
const WAIT_LIMIT: Duration = Duration::from_secs(20);

/// The cached row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Product {
    id: u64,
    /// Rises with each change of the row.
    version: u64,
}

#[derive(Debug, thiserror::Error)]
#[error("the source is broken")]
struct Broken;

type Answer = ReadResult<Product, Broken>;

/// The database: one row whose version can be changed, and which can be slow, missing or broken.
#[derive(Default)]
struct Source {
    version: AtomicU64,
    missing: AtomicBool,
    broken: AtomicBool,
    panics: AtomicBool,
    /// Milliseconds a load takes, after it has read the row.
    delay: AtomicU64,
    /// While true, loads that have read the row do not return.
    closed: AtomicBool,
    loads: AtomicUsize,
    running: AtomicUsize,
    most_running: AtomicUsize,
}

impl Source {
    fn new(delay: Duration) -> Arc<Self> {
        let source = Self {
            version: 1.into(),
            ..Self::default()
        };
        source
            .delay
            .store(delay.as_millis() as u64, Ordering::SeqCst);
        Arc::new(source)
    }

    /// A closed source: its loads read the row, and return once it is opened.
    fn closed() -> Arc<Self> {
        let source = Self::new(Duration::ZERO);
        source.close();
        source
    }

    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    fn open(&self) {
        self.closed.store(false, Ordering::SeqCst);
    }

    /// Changes the row; returns its new version.
    fn change(&self) -> u64 {
        self.version.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn loads(&self) -> usize {
        self.loads.load(Ordering::SeqCst)
    }

    fn running(&self) -> usize {
        self.running.load(Ordering::SeqCst)
    }

    fn set(&self, switch: Switch, is_on: bool) {
        switch(self).store(is_on, Ordering::SeqCst);
    }

    async fn find(self: Arc<Self>) -> Result<Option<Product>, Broken> {
        self.loads.fetch_add(1, Ordering::SeqCst);
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_running.fetch_max(running, Ordering::SeqCst);
        let _running = Running(self.clone());
        let version = self.version.load(Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(self.delay.load(Ordering::SeqCst))).await;
        while self.closed.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(
            !self.panics.load(Ordering::SeqCst),
            "a load panics on purpose"
        );
        if self.broken.load(Ordering::SeqCst) {
            return Err(Broken);
        }
        Ok((!self.missing.load(Ordering::SeqCst)).then_some(Product { id: 1, version }))
    }

    /// The loader for a read.
    fn load(self: &Arc<Self>) -> impl Fn() -> Loading + Send + Sync + 'static {
        let source = self.clone();
        move || Box::pin(source.clone().find())
    }
}

/// One of the switches of a [`Source`].
type Switch = fn(&Source) -> &AtomicBool;

type Loading = Pin<Box<dyn Future<Output = Result<Option<Product>, Broken>> + Send>>;

/// Counts a load as ended when it is dropped.
struct Running(Arc<Source>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A policy with the default times in Redis and a short time to live in memory.
fn policy() -> CachePolicy {
    CachePolicy {
        local_ttl: Duration::from_millis(500),
        ..CachePolicy::new("product")
    }
}

/// A configuration with long time limits: on a busy machine, Redis does not seem to be down, and no load times out.
fn patient() -> CacheConfig {
    CacheConfig {
        redis_timeout: WAIT_LIMIT / 4,
        load_timeout: WAIT_LIMIT * 3,
        ..CacheConfig::default()
    }
}

/// A server, and a connection for raw commands.
async fn redis_server() -> (RedisServer, MultiplexedConnection) {
    let server = RedisServer::start().await;
    let raw = server.conn().await;
    (server, raw)
}

/// A node, connected and subscribed.
async fn node(server: &RedisServer) -> Cache {
    node_with(server, patient()).await
}

async fn node_with(server: &RedisServer, config: CacheConfig) -> Cache {
    let cache = Cache::new(&redis_at(server.client()), config);
    eventually("the node is subscribed", async || {
        cache.stats().local_enabled
    })
    .await;
    cache
}

/// A Redis as a service would have it.
fn redis_at(server: redis::Client) -> Redis {
    Redis::new(server, Duration::from_secs(1), WAIT_LIMIT).expect("its address")
}

/// Two nodes.
async fn nodes(server: &RedisServer) -> [Cache; 2] {
    [node(server).await, node(server).await]
}

async fn read(
    cache: &Cache,
    strategy: ReadStrategy,
    policy: &CachePolicy,
    source: &Arc<Source>,
) -> Answer {
    cache.read(strategy, KEY, policy, source.load()).await
}

/// Reads the row; returns its version if it exists.
async fn version(
    cache: &Cache,
    strategy: ReadStrategy,
    policy: &CachePolicy,
    source: &Arc<Source>,
) -> Option<u64> {
    read(cache, strategy, policy, source)
        .await
        .expect("an answer")
        .map(|product| product.version)
}

/// The same, in a task of its own.
fn spawn_version(
    cache: &Cache,
    strategy: ReadStrategy,
    policy: &CachePolicy,
    source: &Arc<Source>,
) -> JoinHandle<Option<u64>> {
    let cache = cache.clone();
    let policy = policy.clone();
    let source = source.clone();
    tokio::spawn(async move { version(&cache, strategy, &policy, &source).await })
}

/// Waits until `condition` holds.
async fn eventually(what: &str, condition: impl AsyncFnMut() -> bool) {
    testkit::wait::eventually(what, WAIT_LIMIT, condition).await;
}

/// Removes all keys.
async fn flush(raw: &mut MultiplexedConnection) {
    command(raw, "FLUSHALL", &[]).await
}

async fn get(raw: &mut MultiplexedConnection, key: &str) -> Option<String> {
    command(raw, "GET", &[key]).await
}
