//! The limits one process sets for its cache as a whole. What differs from one kind of data to
//! another is in [`super::Policy`].

use std::time::Duration;

/// Limits and periods of a [`Cache`](super::Cache).
#[derive(Debug, Clone)]
pub struct CacheConfig {
    /// How long one Redis command may take before the cache does without it. Default 300 ms.
    pub redis_timeout: Duration,
    /// After so many failures in a row Redis is left alone until it answers a PING. Default 5.
    pub breaker_failures: u32,
    /// How often a Redis that was left alone is asked whether it is back. Default 100 ms.
    pub breaker_probe_every: Duration,
    /// How many loads may run at once, whatever they are for. Default 32.
    pub max_loads: usize,
    /// How long a load may wait for its turn. Default 1 s.
    pub load_wait: Duration,
    /// How long one load may run. Default 8 s, shorter than a mutex and a lease last.
    pub load_limit: Duration,
    /// How many values this process keeps in memory. Default 10,000.
    pub local_capacity: usize,
    /// The channel on which the nodes tell each other what to forget; the same on all of them.
    /// Default `cache:invalidate`. Channels are not scoped to a database number.
    pub channel: String,
    /// The longest pause between attempts to deliver an invalidation. Default 200 ms.
    pub retry_every: Duration,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            redis_timeout: Duration::from_millis(300),
            breaker_failures: 5,
            breaker_probe_every: Duration::from_millis(100),
            max_loads: 32,
            load_wait: Duration::from_secs(1),
            load_limit: Duration::from_secs(8),
            local_capacity: 10_000,
            channel: "cache:invalidate".to_owned(),
            retry_every: Duration::from_millis(200),
        }
    }
}
