//! Limits and intervals of one [`Cache`](crate::Cache) as a whole. What differs between kinds of data is in
//! [`CachePolicy`](crate::CachePolicy).

use std::time::Duration;

/// Limits and intervals of a [`Cache`](crate::Cache): `CacheConfig { shared_mutex: true, ..CacheConfig::default() }`.
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
    /// Whether the rebuild mutex of a key has the name that programs in other languages use: `lock:product:7` for
    /// `cache:product:7`. Do not set this on a cluster, where such a mutex may be in another slot than its key. No other
    /// lock may then have such a name. Default `false`: `{cache:product:7}:lock`. Where a part of the key is in braces,
    /// the mutex is `lock:product:{7}` either way.
    pub shared_mutex: bool,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            redis_timeout: Duration::from_millis(300),
            max_concurrent_loads: 32,
            load_queue_timeout: Duration::from_secs(1),
            load_timeout: Duration::from_secs(8),
            local_capacity: 10_000,
            shared_mutex: false,
        }
    }
}
