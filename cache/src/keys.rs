//! Redis keys that belong to a cached key: its lease and its rebuild mutex.

/// The key of the lease under which `key` is loaded. An invalidation of `key` deletes it. Public for
/// values under `key` that are not JSON and are built elsewhere: store them only if a lease that was
/// set before the load is still there.
///
/// A `{…}` in `key` stays in the lease's key, so both have the same slot of a Redis Cluster.
pub fn lease_key(key: &str) -> String {
    format!("lease:{key}")
}

/// The key of the rebuild mutex: `lock:product:7` for `cache:product:7`. It is a string, so names of
/// other locks, such as `lock:order:…`, must not be those of cached keys.
pub(crate) fn mutex_key(key: &str) -> String {
    format!("lock:{}", key.strip_prefix("cache:").unwrap_or(key))
}
