//! The cache against real Redis servers of its own. Two `Cache`s on one server are two nodes; the
//! database is a [`Source`] that counts who asks it.

#![allow(clippy::unwrap_used)]
#![allow(dead_code)]

mod bloom;
mod faults;
mod invalidation;
mod law;
mod listener;
mod logical;
mod outage;
mod penetration;
mod stale;
mod stampede;
mod support;
mod wire;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use cache_aside::{Cache, CacheConfig, Cached, Kind, Policy, ReadError};
use redis::aio::{ConnectionManager, ConnectionManagerConfig, MultiplexedConnection};
use serde::{Deserialize, Serialize};

use crate::support::redis_server::RedisServer;

/// The key of most tests, and its mutex and lease.
const KEY: &str = "cache:shop:1";
const MUTEX: &str = "lock:shop:1";
const LEASE: &str = "lease:cache:shop:1";

/// How long a condition may take to come true.
const PATIENCE: Duration = Duration::from_secs(20);

/// What is cached.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Shop {
    id: u64,
    /// Rises with each change of the row.
    version: u64,
}

#[derive(Debug, thiserror::Error)]
#[error("the source is broken")]
struct Broken;

type Answer = Result<Option<Arc<Cached<Shop>>>, ReadError<Broken>>;

/// The "database": one row whose version can be changed, and which can be slow, missing, broken.
#[derive(Default)]
struct Source {
    version: AtomicU64,
    missing: AtomicBool,
    broken: AtomicBool,
    panics: AtomicBool,
    /// Milliseconds a load takes, after it has read the row.
    delay: AtomicU64,
    /// While closed, loads that have read the row wait.
    closed: AtomicBool,
    loads: AtomicUsize,
    running: AtomicUsize,
    most_running: AtomicUsize,
}

impl Source {
    fn new(delay: Duration) -> Arc<Self> {
        let source = Self { version: 1.into(), ..Self::default() };
        source.delay.store(delay.as_millis() as u64, Ordering::SeqCst);
        Arc::new(source)
    }

    /// Change the row; returns its version.
    fn change(&self) -> u64 {
        self.version.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn loads(&self) -> usize {
        self.loads.load(Ordering::SeqCst)
    }

    fn running(&self) -> usize {
        self.running.load(Ordering::SeqCst)
    }

    fn set(&self, what: Switch, to: bool) {
        what(self).store(to, Ordering::SeqCst);
    }

    async fn find(self: Arc<Self>) -> Result<Option<Shop>, Broken> {
        self.loads.fetch_add(1, Ordering::SeqCst);
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_running.fetch_max(running, Ordering::SeqCst);
        let _done = Done(self.clone());
        let version = self.version.load(Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(self.delay.load(Ordering::SeqCst))).await;
        while self.closed.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(!self.panics.load(Ordering::SeqCst), "a load panics, as the test wants");
        if self.broken.load(Ordering::SeqCst) {
            return Err(Broken);
        }
        Ok((!self.missing.load(Ordering::SeqCst)).then_some(Shop { id: 1, version }))
    }

    /// What a reader hands to the cache.
    fn load(self: &Arc<Self>) -> impl Fn() -> Loading + Send + Sync + 'static {
        let source = self.clone();
        move || Box::pin(source.clone().find())
    }
}

/// One of the switches of a [`Source`].
type Switch = fn(&Source) -> &AtomicBool;

type Loading = Pin<Box<dyn Future<Output = Result<Option<Shop>, Broken>> + Send>>;

/// A load that ends, however it ends, is no longer running.
struct Done(Arc<Source>);

impl Drop for Done {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A policy with the contract's times and a short life in memory.
fn policy() -> Policy {
    Policy { local_ttl: Duration::from_millis(500), ..Policy::named("shop") }
}

/// A node: connected and listening.
async fn node(server: &RedisServer) -> Cache {
    node_with(server, CacheConfig::default()).await
}

async fn node_with(server: &RedisServer, config: CacheConfig) -> Cache {
    let cache = Cache::new(manager(server).await, server.client(), config);
    eventually("the node listens", async || cache.stats().local_trusted).await;
    cache
}

/// The command connection as a service would open it.
async fn manager(server: &RedisServer) -> ConnectionManager {
    let config = ConnectionManagerConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(1)))
        .set_response_timeout(Some(Duration::from_secs(1)))
        .set_number_of_retries(1)
        .set_max_delay(Duration::from_millis(250))
        .set_pipeline_buffer_size(4096);
    ConnectionManager::new_with_config(server.client(), config).await.expect("connect")
}

/// Two nodes.
async fn nodes(server: &RedisServer) -> [Cache; 2] {
    [node(server).await, node(server).await]
}

async fn read(cache: &Cache, kind: Kind, policy: &Policy, source: &Arc<Source>) -> Answer {
    cache.read(kind, KEY, policy, source.load()).await
}

/// The version of the row that a read answers, if it exists.
async fn version(cache: &Cache, kind: Kind, policy: &Policy, source: &Arc<Source>) -> Option<u64> {
    read(cache, kind, policy, source).await.expect("an answer").map(|shop| shop.version)
}

/// Wait until `condition` holds.
async fn eventually(what: &str, condition: impl AsyncFnMut() -> bool) {
    crate::support::wait::eventually(what, PATIENCE, condition).await;
}

/// Send a raw command.
async fn ask<T: redis::FromRedisValue>(
    raw: &mut MultiplexedConnection,
    name: &str,
    args: &[&str],
) -> T {
    let mut command = redis::cmd(name);
    for arg in args {
        command.arg(arg);
    }
    command.query_async(raw).await.expect(name)
}

async fn get(raw: &mut MultiplexedConnection, key: &str) -> Option<String> {
    ask(raw, "GET", &[key]).await
}
