//! Limits and intervals of one [`Cache`](crate::Cache) as a whole. What differs between kinds of data is in
//! [`CachePolicy`](crate::CachePolicy).

use std::time::Duration;

/// Limits and intervals of a [`Cache`](crate::Cache): `CacheConfig { one_slot: true, ..CacheConfig::default() }`.
#[derive(Debug, Clone)]
pub struct CacheConfig {
    /// Timeout of one Redis command. Default 300 ms.
    pub redis_timeout: Duration,
    /// Maximum number of loads that run at once, over all keys. Default 32.
    pub max_concurrent_loads: usize,
    /// How long a load may wait until fewer than
    /// [`max_concurrent_loads`](Self::max_concurrent_loads) are running. Default 1 s.
    pub load_queue_timeout: Duration,
    /// Timeout of one load. Default 8 s; keep it below [`CachePolicy::mutex_ttl`] and below 60 s,
    /// the time to live of a lease.
    ///
    /// [`CachePolicy::mutex_ttl`]: crate::CachePolicy::mutex_ttl
    pub load_timeout: Duration,
    /// Maximum number of values in this process's memory. Default 10,000.
    pub local_capacity: usize,
    /// Whether the rebuild mutex of a key is in the key's slot of a Redis Cluster, so that scripts may use
    /// both: `{cache:product:7}:lock`. Default `false`: `lock:product:7`, which programs in other languages
    /// know. Where a part of the key is in braces, the mutex is `lock:product:{7}` either way.
    pub one_slot: bool,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            redis_timeout: Duration::from_millis(300),
            max_concurrent_loads: 32,
            load_queue_timeout: Duration::from_secs(1),
            load_timeout: Duration::from_secs(8),
            local_capacity: 10_000,
            one_slot: false,
        }
    }
}
