//! The set of invalidations that Redis has not confirmed yet. There are never more of them than keys
//! changed while Redis was away.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Keys whose invalidation has to be retried.
#[derive(Default)]
pub(crate) struct PendingInvalidations {
    keys: Mutex<Keys>,
    /// The number of keys, so that readers can see without a lock that there are none.
    len: AtomicUsize,
    added: Notify,
}

/// Each key with the number of its latest change: confirming an older change does not remove it.
#[derive(Default)]
struct Keys {
    latest_change: HashMap<String, u64>,
    changes: u64,
}

impl PendingInvalidations {
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// Whether Redis may still hold an outdated value of `key`.
    pub(crate) fn contains(&self, key: &str) -> bool {
        self.len() > 0 && self.lock().latest_change.contains_key(key)
    }

    pub(crate) fn add(&self, key: &str) {
        let mut keys = self.lock();
        keys.changes += 1;
        let change = keys.changes;
        keys.latest_change.insert(key.to_owned(), change);
        self.len.store(keys.latest_change.len(), Ordering::Release);
        drop(keys);
        self.added.notify_one();
    }

    /// Removes `key`, whose invalidation was confirmed, unless it changed again after `change`.
    pub(crate) fn confirm(&self, key: &str, change: u64) {
        let mut keys = self.lock();
        if keys.latest_change.get(key) == Some(&change) {
            keys.latest_change.remove(key);
            self.len.store(keys.latest_change.len(), Ordering::Release);
        }
    }

    /// Every key with the number of its latest change.
    pub(crate) fn snapshot(&self) -> Vec<(String, u64)> {
        self.lock()
            .latest_change
            .iter()
            .map(|(key, change)| (key.clone(), *change))
            .collect()
    }

    /// Waits until a key is added.
    pub(crate) async fn added(&self) {
        self.added.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confirming_an_older_change_keeps_the_key_pending() {
        let pending = PendingInvalidations::default();
        pending.add("a");
        let (key, first) = pending.snapshot().pop().unwrap();
        pending.add("a");
        pending.confirm(&key, first);
        assert!(pending.contains("a"));
        let (key, second) = pending.snapshot().pop().unwrap();
        pending.confirm(&key, second);
        assert!(!pending.contains("a"));
        assert_eq!(pending.len(), 0);
    }
}
