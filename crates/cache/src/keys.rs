//! Redis keys that belong to a cached key, its lease and its rebuild mutex; and the channel of invalidations.

/// Redis does not scope channels to a database number: caches on several share it.
pub(crate) const INVALIDATIONS: &str = "cache:invalidate";

/// The key of the lease under which `key` is loaded. An invalidation of `key` deletes it. Public for
/// values under `key` that are not JSON and are built elsewhere: store them only if a lease that was
/// set before the load is still there.
///
/// Both have the same slot of a Redis Cluster: `{cache:product:7}:lease`, or `lease:cache:product:{7}`
/// where a part of `key` is in braces already. A key with a closing brace but without a part in braces, such as `a}` or
/// `a{}`, cannot be cached on a cluster.
pub fn lease_key(key: &str) -> String {
    beside(key, "lease").unwrap_or_else(|| format!("lease:{key}"))
}

/// The key of the rebuild mutex: `{cache:product:7}:lock`, in the slot of `key` like its lease. If `is_shared`, the name
/// that programs in other languages use: `lock:product:7`. The mutex is a string, so no other lock, such as
/// `lock:order:…`, may then have the name of a cached key's mutex.
pub(crate) fn mutex_key(key: &str, is_shared: bool) -> String {
    let beside = if is_shared { None } else { beside(key, "lock") };
    beside.unwrap_or_else(|| format!("lock:{}", key.strip_prefix("cache:").unwrap_or(key)))
}

/// `{key}:name`, which is in the slot of `key`. `None` if `key` has a closing brace: what stands before that would decide
/// the slot.
fn beside(key: &str, name: &str) -> Option<String> {
    (!key.contains('}')).then(|| format!("{{{key}}}:{name}"))
}

#[cfg(test)]
mod tests {
    use super::{lease_key, mutex_key};

    #[test]
    fn companions_share_the_slot_of_their_key() {
        assert_eq!(lease_key("cache:product:7"), "{cache:product:7}:lease");
        assert_eq!(lease_key("cache:product:{7}"), "lease:cache:product:{7}");
        // An opening brace alone decides no slot.
        assert_eq!(lease_key("cache:{7"), "{cache:{7}:lease");
        assert_eq!(
            mutex_key("cache:product:7", false),
            "{cache:product:7}:lock"
        );
        assert_eq!(mutex_key("cache:product:{7}", false), "lock:product:{7}");
        assert_eq!(mutex_key("cache:product:7", true), "lock:product:7");
    }
}
