//! The first cache level, in this process's memory: bounded, short-lived, and disabled while
//! invalidations cannot be received. It does no I/O.
//!
//! An entry is valid only under the [`VersionStamp`] it was stored with. A reader takes the stamp
//! *before* it reads Redis or the source; an invalidation changes the stamp of its key, and the loss
//! of the invalidation subscription changes that of all keys. So a value that was read before a
//! change is never served, in whatever order the change and the store arrive.

use std::any::Any;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quick_cache::sync::Cache as Map;

use crate::value::CachedValue;

/// Number of epoch counters that all keys share. An invalidation also drops the few other entries
/// with the same counter.
const EPOCHS: usize = 4096;

/// The version of one key at one moment; it changes with each invalidation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct VersionStamp {
    /// Number of the subscription to invalidations; odd while it is up.
    subscription: u64,
    /// Number of invalidations of the key.
    epoch: u64,
}

impl VersionStamp {
    /// Whether what is read under this stamp is at least as new as what is read under `required`.
    pub(crate) fn covers(self, required: Self) -> bool {
        self.subscription >= required.subscription && self.epoch >= required.epoch
    }

    fn is_subscribed(self) -> bool {
        self.subscription % 2 == 1
    }
}

/// A value of any type, or `None`: the row does not exist.
type ErasedValue = Option<Arc<dyn Any + Send + Sync>>;

#[derive(Clone)]
struct Entry {
    stamp: VersionStamp,
    expires: Instant,
    value: ErasedValue,
}

/// Values in memory.
pub(crate) struct LocalCache {
    entries: Map<Arc<str>, Entry>,
    epochs: Box<[AtomicU64]>,
    hasher: RandomState,
    /// See [`VersionStamp::subscription`].
    subscription: AtomicU64,
}

impl LocalCache {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            entries: Map::new(capacity.max(1)),
            epochs: (0..EPOCHS).map(|_| AtomicU64::new(0)).collect(),
            hasher: RandomState::new(),
            subscription: AtomicU64::new(0),
        }
    }

    /// The current version of `key`.
    pub(crate) fn stamp(&self, key: &str) -> VersionStamp {
        VersionStamp {
            subscription: self.subscription.load(Ordering::Acquire),
            epoch: self.epoch(key).load(Ordering::Acquire),
        }
    }

    /// The valid entry of `key`; `Some(None)`: the row does not exist.
    pub(crate) fn get<T: Send + Sync + 'static>(
        &self,
        key: &str,
    ) -> Option<Option<Arc<CachedValue<T>>>> {
        let entry = self.entries.get(key)?;
        let stamp = self.stamp(key);
        if entry.stamp != stamp || !stamp.is_subscribed() || entry.expires <= Instant::now() {
            return None;
        }
        match entry.value {
            None => Some(None),
            Some(value) => Some(Some(value.downcast().ok()?)),
        }
    }

    /// Stores a value that was read after `stamp` was taken.
    pub(crate) fn put<T: Send + Sync + 'static>(
        &self,
        key: &str,
        stamp: VersionStamp,
        value: Option<&Arc<CachedValue<T>>>,
        ttl: Duration,
    ) {
        // Only to save memory: an outdated entry that slips through is not served.
        if !stamp.is_subscribed() || stamp != self.stamp(key) {
            return;
        }
        let Some(expires) = Instant::now().checked_add(ttl) else {
            return;
        };
        let value = value.map(|value| value.clone() as Arc<dyn Any + Send + Sync>);
        self.entries.insert(
            key.into(),
            Entry {
                stamp,
                expires,
                value,
            },
        );
    }

    /// Invalidates what was read of `key` before now.
    pub(crate) fn invalidate(&self, key: &str) {
        self.epoch(key).fetch_add(1, Ordering::AcqRel);
        self.entries.remove(key);
    }

    /// Invalidations are received from now on. Nothing older is valid.
    pub(crate) fn enable(&self) {
        self.entries.clear();
        self.subscription.fetch_add(1, Ordering::AcqRel);
        debug_assert!(self.is_enabled());
    }

    /// Invalidations may be missed from now on. Returns whether it was enabled.
    pub(crate) fn disable(&self) -> bool {
        if !self.is_enabled() {
            return false;
        }
        self.subscription.fetch_add(1, Ordering::AcqRel);
        self.entries.clear();
        true
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.subscription.load(Ordering::Acquire) % 2 == 1
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    fn epoch(&self, key: &str) -> &AtomicU64 {
        &self.epochs[self.hasher.hash_one(key) as usize % EPOCHS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn put(local: &LocalCache, key: &str, stamp: VersionStamp, value: u64) {
        local.put(key, stamp, Some(&CachedValue::new(value)), MINUTE);
    }

    fn get(local: &LocalCache, key: &str) -> Option<Option<u64>> {
        local
            .get::<u64>(key)
            .map(|found| found.map(|value| **value))
    }

    #[test]
    fn entries_expire_are_bounded_and_can_be_nulls() {
        let local = LocalCache::new(100);
        local.enable();
        local.put::<u64>("null", local.stamp("null"), None, MINUTE);
        assert_eq!(get(&local, "null"), Some(None));
        let value = CachedValue::new(1_u64);
        local.put("old", local.stamp("old"), Some(&value), Duration::ZERO);
        assert_eq!(get(&local, "old"), None);
        for i in 0..10_000 {
            let key = i.to_string();
            put(&local, &key, local.stamp(&key), i);
        }
        assert!(local.len() <= 110, "{}", local.len());
    }

    #[test]
    fn an_entry_that_is_stored_at_the_moment_of_an_invalidation_is_not_served() {
        let local = LocalCache::new(10);
        local.enable();
        put(&local, "a", local.stamp("a"), 1);
        // As if it came between the check of the stamp and the insertion.
        local.epoch("a").fetch_add(1, Ordering::AcqRel);
        assert_eq!(get(&local, "a"), None);
    }

    #[test]
    fn another_type_under_the_same_key_is_a_miss() {
        let local = LocalCache::new(10);
        local.enable();
        put(&local, "a", local.stamp("a"), 1);
        assert!(local.get::<String>("a").is_none());
    }
}
