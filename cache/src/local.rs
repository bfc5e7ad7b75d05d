//! The cache in this process's memory (L1): bounded, short-lived, and emptied as soon as it can no
//! longer be sure to hear of changes. It talks to nobody.
//!
//! An entry is valid only under the [`Stamp`] it was made with. The stamp is taken *before* the
//! value is looked up; an invalidation changes the stamp of its key, and the loss of the
//! invalidation connection that of all. So whatever was looked up before a change can be put here
//! only to be ignored, in whatever order the two arrive.

use std::any::Any;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quick_cache::sync::Cache as Map;

use super::value::Cached;

/// Number of counters that all keys share. An invalidation drops the few other entries that have
/// the same counter, too.
const EPOCHS: usize = 4096;

/// The state of one key at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    /// Of the invalidation connection.
    session: u64,
    /// Of the key.
    epoch: u64,
}

impl Stamp {
    /// Sessions in which invalidations are heard have odd numbers.
    fn trusted(self) -> bool {
        self.session % 2 == 1
    }
}

/// A row that exists, or the knowledge that it does not.
type Slot = Option<Arc<dyn Any + Send + Sync>>;

#[derive(Clone)]
struct Entry {
    stamp: Stamp,
    until: Instant,
    value: Slot,
}

/// The values in memory.
pub(super) struct Local {
    entries: Map<Arc<str>, Entry>,
    epochs: Box<[AtomicU64]>,
    hasher: RandomState,
    session: AtomicU64,
}

impl Local {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            entries: Map::new(capacity.max(1)),
            epochs: (0..EPOCHS).map(|_| AtomicU64::new(0)).collect(),
            hasher: RandomState::new(),
            session: AtomicU64::new(0),
        }
    }

    /// The state of `key` now.
    pub(super) fn stamp(&self, key: &str) -> Stamp {
        Stamp {
            session: self.session.load(Ordering::Acquire),
            epoch: self.epoch(key).load(Ordering::Acquire),
        }
    }

    /// The valid entry of `key`: `Some(None)` says that the row does not exist.
    pub(super) fn get<T: Send + Sync + 'static>(
        &self,
        key: &str,
    ) -> Option<Option<Arc<Cached<T>>>> {
        let entry = self.entries.get(key)?;
        let stamp = self.stamp(key);
        if entry.stamp != stamp || !stamp.trusted() || entry.until <= Instant::now() {
            return None;
        }
        match entry.value {
            None => Some(None),
            Some(value) => Some(Some(value.downcast().ok()?)),
        }
    }

    /// Keep what was looked up after `stamp` was taken.
    pub(super) fn put<T: Send + Sync + 'static>(
        &self,
        key: &str,
        stamp: Stamp,
        value: Option<&Arc<Cached<T>>>,
        ttl: Duration,
    ) {
        // Only to save the room: what is put in spite of it is not served.
        if !stamp.trusted() || stamp != self.stamp(key) {
            return;
        }
        let Some(until) = Instant::now().checked_add(ttl) else { return };
        let value = value.map(|value| value.clone() as Arc<dyn Any + Send + Sync>);
        self.entries.insert(key.into(), Entry { stamp, until, value });
    }

    /// Nothing that was looked up before now is valid for `key`.
    pub(super) fn forget(&self, key: &str) {
        self.epoch(key).fetch_add(1, Ordering::AcqRel);
        self.entries.remove(key);
    }

    /// Invalidations are heard from now on; nothing older is valid.
    pub(super) fn trust(&self) {
        self.entries.clear();
        self.session.fetch_add(1, Ordering::AcqRel);
        debug_assert!(self.trusted());
    }

    /// Invalidations may be missed from now on. `false`: that was known.
    pub(super) fn distrust(&self) -> bool {
        if !self.trusted() {
            return false;
        }
        self.session.fetch_add(1, Ordering::AcqRel);
        self.entries.clear();
        true
    }

    pub(super) fn trusted(&self) -> bool {
        self.session.load(Ordering::Acquire) % 2 == 1
    }

    pub(super) fn len(&self) -> usize {
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

    fn put(local: &Local, key: &str, stamp: Stamp, value: u64) {
        local.put(key, stamp, Some(&Arc::new(Cached::new(value))), MINUTE);
    }

    fn get(local: &Local, key: &str) -> Option<Option<u64>> {
        local.get::<u64>(key).map(|found| found.map(|value| **value))
    }

    #[test]
    fn what_was_looked_up_before_a_change_is_never_served() {
        let local = Local::new(10);
        local.trust();
        let before = local.stamp("a");
        put(&local, "a", before, 1);
        assert_eq!(get(&local, "a"), Some(Some(1)));
        local.forget("a");
        assert_eq!(get(&local, "a"), None);
        put(&local, "a", before, 1);
        assert_eq!(get(&local, "a"), None, "put after the change, looked up before it");
        put(&local, "a", local.stamp("a"), 2);
        assert_eq!(get(&local, "a"), Some(Some(2)));
    }

    #[test]
    fn nothing_is_served_or_survives_while_changes_may_be_missed() {
        let local = Local::new(10);
        put(&local, "a", local.stamp("a"), 1);
        assert_eq!(get(&local, "a"), None, "not yet connected");
        local.trust();
        put(&local, "a", local.stamp("a"), 1);
        assert!(local.distrust());
        assert!(!local.distrust());
        assert_eq!(get(&local, "a"), None);
        put(&local, "a", local.stamp("a"), 1);
        local.trust();
        assert_eq!(get(&local, "a"), None, "nothing survives the gap");
    }

    #[test]
    fn entries_expire_are_bounded_and_keep_nulls() {
        let local = Local::new(100);
        local.trust();
        local.put::<u64>("gone", local.stamp("gone"), None, MINUTE);
        assert_eq!(get(&local, "gone"), Some(None));
        local.put("old", local.stamp("old"), Some(&Arc::new(Cached::new(1_u64))), Duration::ZERO);
        assert_eq!(get(&local, "old"), None);
        for i in 0..10_000 {
            let key = i.to_string();
            put(&local, &key, local.stamp(&key), i);
        }
        assert!(local.len() <= 110, "{}", local.len());
    }

    #[test]
    fn another_type_under_the_same_key_is_a_miss() {
        let local = Local::new(10);
        local.trust();
        put(&local, "a", local.stamp("a"), 1);
        assert!(local.get::<String>("a").is_none());
    }
}
