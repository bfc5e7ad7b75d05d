//! Times to live, timeouts and the filter of one kind of cached data.

use std::sync::Arc;
use std::time::Duration;

use crate::bloom::filter::BloomFilter;
use crate::stats::{PolicyCounters, PolicyStats};

/// How one kind of data is cached: `CachePolicy { local_ttl, ..CachePolicy::new("product") }`.
#[derive(Debug, Clone)]
pub struct CachePolicy {
    /// A name for logs and metrics, such as `product`.
    pub name: &'static str,
    /// Time to live of a value in Redis, or with logical expiry how long it counts as fresh, up to 10 % more
    /// or less: values that were stored together do not expire together. Default 30 min.
    pub ttl: Duration,
    /// Time to live of a cached null in Redis. Default 2 min.
    pub null_ttl: Duration,
    /// Layered: a value with less than this left to live is served and rebuilt in the background.
    /// Default 3 min, capped at half of [`ttl`](Self::ttl). Zero: no refresh-ahead.
    pub refresh_ahead: Duration,
    /// Time to live of a value in memory, and so the bound on how old an answer may be if an
    /// invalidation message is lost. Default 1 s.
    pub local_ttl: Duration,
    /// Time to live of the rebuild mutex, should its owner die. Default 10 s.
    pub mutex_ttl: Duration,
    /// How long a reader waits for another node's load before it loads itself. Default 8 s, as long as a load may take:
    /// with a shorter one, a slow load is repeated on every node.
    pub wait_timeout: Duration,
    /// Filter of the keys that exist; checked when Redis has no value, before a load. Default none.
    pub bloom_filter: Option<BloomFilter>,
    /// The counters that [`stats`](Self::stats) reads. Clones share them.
    pub counters: Arc<PolicyCounters>,
}

impl CachePolicy {
    /// A policy with the default times, no filter, and counters of its own.
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            ttl: Duration::from_secs(30 * 60),
            null_ttl: Duration::from_secs(2 * 60),
            refresh_ahead: Duration::from_secs(3 * 60),
            local_ttl: Duration::from_secs(1),
            mutex_ttl: Duration::from_secs(10),
            wait_timeout: Duration::from_secs(8),
            bloom_filter: None,
            counters: Arc::default(),
        }
    }

    /// [`refresh_ahead`](Self::refresh_ahead) with its cap: a value that is stale from the start
    /// would be rebuilt without end.
    pub(crate) fn capped_refresh_ahead(&self) -> Duration {
        self.refresh_ahead.min(self.ttl / 2)
    }

    /// Counts of reads under this policy and its clones since [`new`](Self::new).
    pub fn stats(&self) -> PolicyStats {
        self.counters.read()
    }
}
