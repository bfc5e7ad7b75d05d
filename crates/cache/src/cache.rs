//! The cache handle: construction, background tasks, invalidation and shutdown. Reads are in
//! `read`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use redis_link::{AddressError, Redis, Server};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::bloom::filter::BloomFilter;
use crate::bloom::size::BloomSize;
use crate::config::CacheConfig;
use crate::connection::redis_commands::RedisCommands;
use crate::invalidation::invalidator::Invalidator;
use crate::invalidation::pending::PendingInvalidations;
use crate::invalidation::subscriber::InvalidationSubscriber;
use crate::load::LoadLimiter;
use crate::local_cache::LocalCache;
use crate::single_flight::SingleFlight;
use crate::stats::{CacheCounters, CacheStats};

/// How many invalidations of one [`Cache::invalidate`] are in flight at once.
const CONCURRENT_INVALIDATIONS: usize = 16;

/// How long opening a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long [`Cache::shutdown`] waits for work under way.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause before a background task that panicked is started again.
const RESTART_PAUSE: Duration = Duration::from_millis(100);

/// A two-level cache: one Redis, and this process's memory. Clones are handles of the same cache;
/// dropping the last one ends its background tasks.
#[derive(Clone)]
pub struct Cache {
    pub(crate) inner: Arc<Inner>,
    /// Ends the background tasks when the last handle is dropped. The tasks hold `inner`, but not this.
    _stop_on_drop: Arc<DropGuard>,
}

/// What the handles and the tasks share.
pub(crate) struct Inner {
    pub(crate) redis: Arc<RedisCommands>,
    pub(crate) local: Arc<LocalCache>,
    /// Reads that wait for a value.
    pub(crate) reads: Arc<SingleFlight>,
    /// Rebuilds of values that are served meanwhile. Apart from `reads`, so that no reader ever
    /// waits for one of these.
    pub(crate) rebuilds: Arc<SingleFlight>,
    pub(crate) load_limiter: LoadLimiter,
    pub(crate) invalidator: Invalidator,
    pub(crate) tasks: TaskTracker,
    subscriber: InvalidationSubscriber,
    counters: Arc<CacheCounters>,
    stop: CancellationToken,
}

impl Inner {
    /// Receives invalidations, retries those that are pending, and probes Redis while the circuit breaker is open; until
    /// `stop`.
    async fn run_background(&self) {
        tokio::join!(
            self.subscriber.run(&self.stop),
            self.invalidator.retry_pending(&self.stop),
            self.stop.run_until_cancelled(self.redis.probe()),
        );
    }
}

/// Whether an invalidation has taken effect everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub enum InvalidationStatus {
    /// Redis deleted the keys and published the invalidation to every node.
    Delivered,
    /// Redis did not confirm; the invalidation is retried until it does. Meanwhile this process reads
    /// the keys from the source. If the process dies before that, their time to live (or logical
    /// expiry) bounds how long other nodes serve the old value.
    Pending,
}

impl Cache {
    /// A cache on the Redis at this address, with the default limits: `redis://host:6379/`, `redis-cluster://…` or
    /// `redis-sentinel://…`, as [`Server::from_url`](redis_link::Server::from_url) reads it.
    ///
    /// # Errors
    /// When the address cannot be used. A Redis that does not answer is no error: reads go to the source until it does.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn connect(url: &str) -> Result<Self, AddressError> {
        let config = CacheConfig::default();
        let server = Server::from_url(url)?;
        let redis = Redis::new(server, CONNECT_TIMEOUT, config.redis_timeout)?;
        Ok(Self::new(&redis, config))
    }

    /// A cache on this Redis, over connections of its own: one for commands, with the time limit of `config`, and one on
    /// which invalidations are received.
    ///
    /// The cache in memory is not used until the second connection is up, which takes a moment.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn new(redis: &Redis, config: CacheConfig) -> Self {
        let counters = Arc::<CacheCounters>::default();
        let redis = redis.with_command_timeout(config.redis_timeout);
        let commands = RedisCommands::new(redis.commands(), &config, counters.clone());
        let commands = Arc::new(commands);
        let local = Arc::new(LocalCache::new(config.local_capacity));
        let invalidator = Invalidator {
            redis: commands.clone(),
            local: local.clone(),
            counters: counters.clone(),
            pending: PendingInvalidations::default(),
        };
        let subscriber = InvalidationSubscriber {
            redis,
            node_id: commands.node_id.clone(),
            local: local.clone(),
            counters: counters.clone(),
        };
        let stop = CancellationToken::new();
        let inner = Arc::new(Inner {
            redis: commands,
            local,
            reads: Arc::default(),
            rebuilds: Arc::default(),
            load_limiter: LoadLimiter::new(&config),
            invalidator,
            tasks: TaskTracker::new(),
            subscriber,
            counters,
            stop: stop.clone(),
        });
        let background = inner.clone();
        supervise(&inner.tasks, "cache", move || {
            let inner = background.clone();
            async move { inner.run_background().await }
        });
        Self {
            inner,
            _stop_on_drop: Arc::new(stop.drop_guard()),
        }
    }

    /// Invalidates `keys` in this process, in Redis and on every node, in one round trip. Call it
    /// after the database has committed the change, from a task that outlives the client's
    /// connection. It completes even if the returned future is dropped after its first poll.
    pub async fn invalidate<K: AsRef<str>>(&self, keys: &[K]) -> InvalidationStatus {
        let keys: Vec<String> = keys.iter().map(|key| key.as_ref().to_owned()).collect();
        let inner = self.inner.clone();
        let work = self.inner.tasks.spawn(async move {
            let invalidations = stream::iter(keys).map(|key| {
                let inner = inner.clone();
                async move { inner.invalidator.invalidate(&key).await }
            });
            invalidations
                .buffer_unordered(CONCURRENT_INVALIDATIONS)
                .fold(true, async |all, delivered| all && delivered)
                .await
        });
        match work.await {
            Ok(true) => InvalidationStatus::Delivered,
            Ok(false) => InvalidationStatus::Pending,
            Err(error) => {
                tracing::error!(%error, "an invalidation was aborted");
                InvalidationStatus::Pending
            }
        }
    }

    /// A Bloom filter named `name` in this cache's Redis, for
    /// [`CachePolicy::bloom_filter`](crate::CachePolicy::bloom_filter).
    pub fn bloom_filter(&self, name: &str, size: BloomSize) -> BloomFilter {
        BloomFilter::new(self.inner.redis.clone(), name, size)
    }

    /// Keeps `filter` filled in the background until the cache ends: checks it every `interval`, and
    /// fills it (see [`BloomFilter::fill`]) if Redis has lost it.
    pub fn keep_filled<F, E>(
        &self,
        filter: BloomFilter,
        interval: Duration,
        pages: impl Fn(Option<String>) -> F + Clone + Send + Sync + 'static,
    ) where
        F: Future<Output = Result<Vec<String>, E>> + Send,
        E: std::fmt::Display + Send,
    {
        let stop = self.inner.stop.clone();
        supervise(&self.inner.tasks, "Bloom filter", move || {
            let stop = stop.clone();
            let filter = filter.clone();
            let pages = pages.clone();
            async move {
                stop.run_until_cancelled(filter.keep_filled(interval, &pages))
                    .await;
            }
        });
    }

    /// The state of this process's cache.
    pub fn stats(&self) -> CacheStats {
        let inner = &self.inner;
        CacheStats {
            counts: inner.counters.read(),
            pending_invalidations: inner.invalidator.pending.len() as u64,
            breaker_open: inner.redis.breaker.is_open(),
            local_enabled: inner.local.is_enabled(),
            local_entries: inner.local.len() as u64,
            loads_running: inner.load_limiter.running() as u64,
        }
    }

    /// Ends the background tasks, after one more attempt at pending invalidations, and waits for
    /// loads and invalidations under way, at most 10 s.
    pub async fn shutdown(&self) {
        self.inner.stop.cancel();
        self.inner.tasks.close();
        if tokio::time::timeout(SHUTDOWN_TIMEOUT, self.inner.tasks.wait())
            .await
            .is_err()
        {
            tracing::warn!(
                tasks = self.inner.tasks.len(),
                "cache tasks left unfinished"
            );
        }
        let pending = self.inner.invalidator.pending.len();
        if pending > 0 {
            tracing::error!(
                pending,
                "invalidations not delivered; times to live bound them"
            );
        }
    }
}

/// Runs the future that `make` returns as one of `tasks`. If it panics, logs that and runs a new one.
fn supervise<F>(
    tasks: &TaskTracker,
    name: &'static str,
    mut make: impl FnMut() -> F + Send + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let tracker = tasks.clone();
    tasks.spawn(async move {
        loop {
            match tracker.spawn(make()).await {
                Ok(()) => return,
                Err(error) if error.is_panic() => {
                    tracing::error!(task = name, "background task panicked; restarting it");
                    tokio::time::sleep(RESTART_PAUSE).await;
                }
                Err(_) => return,
            }
        }
    });
}
