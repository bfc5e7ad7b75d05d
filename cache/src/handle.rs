//! The cache as a whole: its parts, its background tasks, writing and invalidating. How it is read
//! is in `read`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use redis::Client;
use redis::aio::ConnectionManager;
use serde::Serialize;
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::conn::Conn;
use super::flight::Flights;
use super::listener::Listener;
use super::load::Loader;
use super::local::Local;
use super::outbox::{self, Outbox};
use super::stats::CacheCounters;
use super::supervise::supervise;
use super::value::Encoded;
use super::{Bloom, BloomSize, CacheConfig, CacheStats, Error, Ttl};

/// How many invalidations are on their way to Redis at once.
const IN_FLIGHT: usize = 16;

/// How long [`Cache::shutdown`] waits for work under way.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(10);

/// A cache over one Redis and this process's memory. Clones are handles of the same cache; when
/// the last one goes, so do its background tasks.
#[derive(Clone)]
pub struct Cache {
    pub(super) inner: Arc<Inner>,
    /// Ends the background tasks, which hold the parts but not this.
    _alive: Arc<DropGuard>,
}

/// What the handles share.
pub(super) struct Inner {
    pub(super) conn: Arc<Conn>,
    pub(super) local: Arc<Local>,
    /// Readers that have no value yet.
    pub(super) flights: Arc<Flights>,
    /// Values being replaced while they are served. Apart from the others, so that no reader ever
    /// waits for one of these.
    pub(super) rebuilds: Arc<Flights>,
    pub(super) loader: Loader,
    pub(super) outbox: Outbox,
    pub(super) tasks: TaskTracker,
    counters: Arc<CacheCounters>,
    stop: CancellationToken,
}

/// Whether an invalidation has taken effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Delivery {
    /// Redis has forgotten the keys and told every node.
    Done,
    /// This process has forgotten them and reads them from the source. Redis could not be told
    /// yet; that is retried until it is. Should this process die before, their time to live (or
    /// logical expiry) bounds how long other nodes serve the old value.
    Pending,
}

impl Cache {
    /// A cache that sends its commands over `manager` and listens on a connection of its own, made
    /// from `client`. Both must lead to the same server. Must be called within a tokio runtime.
    ///
    /// Nothing is kept in memory until the listener is connected, which takes a moment.
    pub fn new(manager: ConnectionManager, client: Client, config: CacheConfig) -> Self {
        let counters = Arc::<CacheCounters>::default();
        let conn = Arc::new(Conn::new(manager, &config, counters.clone()));
        let local = Arc::new(Local::new(config.local_capacity));
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let connected = Arc::new(Notify::new());
        let listener = Arc::new(Listener {
            client,
            channel: config.channel.clone(),
            node: conn.node().to_owned(),
            local: local.clone(),
            counters: counters.clone(),
            connected: connected.clone(),
            stop: stop.clone(),
        });
        let inner = Arc::new(Inner {
            conn: conn.clone(),
            local,
            flights: Arc::default(),
            rebuilds: Arc::default(),
            loader: Loader::new(&config),
            outbox: Outbox::default(),
            tasks: tasks.clone(),
            counters,
            stop: stop.clone(),
        });
        supervise(&tasks, "cache listener", move || {
            let listener = listener.clone();
            async move { listener.run().await }
        });
        supervise(&tasks, "cache outbox", {
            let (inner, stop) = (inner.clone(), stop.clone());
            move || outbox::run(inner.clone(), connected.clone(), config.retry_every, stop.clone())
        });
        supervise(&tasks, "cache breaker probe", {
            let stop = stop.clone();
            move || {
                let (conn, stop) = (conn.clone(), stop.clone());
                async move {
                    let probe = conn.probe(config.breaker_probe_every);
                    stop.run_until_cancelled(probe).await;
                }
            }
        });
        Self { inner, _alive: Arc::new(stop.drop_guard()) }
    }

    /// Store `value` under `key` for `ttl`, whatever is there. Loads of this key that are on their
    /// way will not overwrite it, and every node forgets its copy.
    ///
    /// # Errors
    /// When the value cannot be encoded or Redis did not confirm; what Redis holds is then unknown,
    /// and the caller should [`invalidate`](Self::invalidate).
    pub async fn set<T: Serialize>(&self, key: &str, value: &T, ttl: Ttl) -> Result<(), Error> {
        self.put(key, Encoded::plain(value, ttl)?).await
    }

    /// Store `value` under `key` without expiry, as fresh for `fresh_for`. For
    /// [`read_with_logical_expiry`](Self::read_with_logical_expiry): hot data put there beforehand.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub async fn set_with_logical_expiry<T: Serialize>(
        &self,
        key: &str,
        value: &T,
        fresh_for: Ttl,
    ) -> Result<(), Error> {
        self.put(key, Encoded::logical(value, fresh_for)?).await
    }

    async fn put(&self, key: &str, value: Encoded) -> Result<(), Error> {
        let result = self.inner.conn.set(key, &value).await;
        self.inner.local.forget(key);
        result
    }

    /// Forget `keys`, here, in Redis and on every node; call it after the database has committed
    /// the change, from a task that outlives the client's connection. It is seen through even if
    /// the caller does not wait for it. Problem: stale reads. Cost: one round trip.
    pub async fn invalidate<K: AsRef<str>>(&self, keys: &[K]) -> Delivery {
        let keys: Vec<String> = keys.iter().map(|key| key.as_ref().to_owned()).collect();
        let inner = self.inner.clone();
        let work = self.inner.tasks.spawn(async move {
            let sent = stream::iter(keys).map(|key| {
                let inner = inner.clone();
                async move { inner.invalidate(&key).await }
            });
            sent.buffer_unordered(IN_FLIGHT).fold(true, async |all, sent| all && sent).await
        });
        match work.await {
            Ok(true) => Delivery::Done,
            Ok(false) => Delivery::Pending,
            Err(error) => {
                tracing::error!(fault = %error, "an invalidation broke off");
                Delivery::Pending
            }
        }
    }

    /// A Bloom filter named `name` in this cache's Redis, for [`Policy::filter`](super::Policy).
    pub fn bloom(&self, name: &str, size: BloomSize) -> Bloom {
        Bloom::new(self.inner.conn.clone(), name, size)
    }

    /// Keep `bloom` filled in the background, until the cache ends: see [`Bloom::fill`]. It is
    /// looked at every `period`, and filled when Redis has lost it.
    pub fn keep_filled<F, E>(
        &self,
        bloom: Bloom,
        period: Duration,
        pages: impl Fn(Option<String>) -> F + Clone + Send + Sync + 'static,
    ) where
        F: Future<Output = Result<Vec<String>, E>> + Send,
        E: std::fmt::Display + Send,
    {
        let stop = self.inner.stop.clone();
        supervise(&self.inner.tasks, "bloom filter", move || {
            let (stop, bloom, pages) = (stop.clone(), bloom.clone(), pages.clone());
            async move {
                stop.run_until_cancelled(bloom.keep_filled(period, &pages)).await;
            }
        });
    }

    /// The state of this process's cache.
    pub fn stats(&self) -> CacheStats {
        let inner = &self.inner;
        CacheStats {
            counts: inner.counters.read(),
            retries_pending: inner.outbox.len() as u64,
            breaker_open: inner.conn.breaker().is_open(),
            local_trusted: inner.local.trusted(),
            local_entries: inner.local.len() as u64,
            loads_running: inner.loader.running() as u64,
        }
    }

    /// End the background tasks, after one more try to deliver what is pending, and wait for loads
    /// and invalidations under way, at most 10 s.
    pub async fn shutdown(&self) {
        self.inner.stop.cancel();
        self.inner.tasks.close();
        if tokio::time::timeout(SHUTDOWN_LIMIT, self.inner.tasks.wait()).await.is_err() {
            tracing::warn!(tasks = self.inner.tasks.len(), "cache work left unfinished");
        }
        let pending = self.inner.outbox.len();
        if pending > 0 {
            tracing::error!(pending, "invalidations not delivered; their time to live bounds them");
        }
    }
}

impl Inner {
    /// Forget one key; `false`: delivered later.
    async fn invalidate(&self, key: &str) -> bool {
        // A Redis that is known to be away is left to the outbox, which asks often.
        if !self.conn.breaker().is_open() && self.announce(key).await {
            return true;
        }
        // From here on this process passes Redis by for this key.
        self.outbox.add(key);
        self.local.forget(key);
        false
    }

    /// Tell Redis and all nodes to forget `key`; `false`: not confirmed.
    pub(super) async fn announce(&self, key: &str) -> bool {
        self.local.forget(key);
        let sent = self.conn.invalidate(key).await;
        // Once more: a reader may have looked into Redis just before the deletion.
        self.local.forget(key);
        match &sent {
            Ok(()) => self.counters.invalidations_sent.up(),
            Err(error) => {
                self.counters.invalidation_failures.up();
                tracing::warn!(key, fault = %error, "invalidation not confirmed; it is retried");
            }
        }
        sent.is_ok()
    }
}
