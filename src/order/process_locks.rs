//! Locks within this process, one per key: two processes with a lock of the same key do not exclude each
//! other.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use lock::LockStats;
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

use crate::histogram::Histogram;

/// Asynchronous locks by key, first come, first served.
#[derive(Debug, Default)]
pub struct ProcessLocks(Arc<State>);

#[derive(Debug, Default)]
struct State {
    /// Also has keys that nobody holds any more; see [`CLEANUP_AT`].
    locks: Mutex<HashMap<u64, Arc<tokio::sync::Mutex<()>>>>,
    waited: Histogram,
    held: Histogram,
}

/// At this number of keys, those that no call holds or awaits are removed.
const CLEANUP_AT: usize = 10_000;

/// A held key. Dropping it releases the key to the next waiter.
#[must_use = "dropping the guard releases the lock"]
#[derive(Debug)]
pub struct ProcessGuard {
    state: Arc<State>,
    since: Instant,
    _held: OwnedMutexGuard<()>,
}

impl ProcessLocks {
    /// Acquires `key`, after the callers that came before, waiting as long as it takes. Dropping the
    /// future gives up waiting, and its place.
    pub async fn acquire(&self, key: u64) -> ProcessGuard {
        let started = Instant::now();
        let lock = {
            let mut locks = self.0.locks.lock();
            if locks.len() >= CLEANUP_AT {
                locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            }
            locks.entry(key).or_default().clone()
        };
        let held = lock.lock_owned().await;
        self.0.waited.add_duration(started.elapsed());
        ProcessGuard {
            state: self.0.clone(),
            since: Instant::now(),
            _held: held,
        }
    }

    /// Statistics of the kind `process`.
    pub fn stats(&self) -> LockStats {
        // First, so that a key that is acquired meanwhile counts as held.
        let held = self.0.held.counted();
        let waited = self.0.waited.counted();
        let held_now = waited.count.saturating_sub(held.count);
        // One reference is the map's; every other one is of a call that holds or awaits the key.
        let calls: u64 = self
            .0
            .locks
            .lock()
            .values()
            .map(|lock| Arc::strong_count(lock) as u64 - 1)
            .sum();
        LockStats {
            kind: "process",
            acquired: waited.count,
            held_now,
            waiting_now: calls.saturating_sub(held_now),
            waited,
            held,
            ..LockStats::default()
        }
    }
}

impl Drop for ProcessGuard {
    fn drop(&mut self) {
        self.state.held.add_duration(self.since.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn idle_keys_are_removed_and_held_ones_stay() {
        let locks = ProcessLocks::default();
        let held = locks.acquire(7).await;
        let mut next = Box::pin(locks.acquire(7));
        assert!(timeout(Duration::ZERO, &mut next).await.is_err());
        assert_eq!((locks.stats().held_now, locks.stats().waiting_now), (1, 1));
        for key in 10..2 * CLEANUP_AT as u64 {
            drop(locks.acquire(key).await);
        }
        assert!(locks.0.locks.lock().len() <= CLEANUP_AT);
        assert!(
            timeout(Duration::ZERO, &mut next).await.is_err(),
            "it is still held"
        );
        drop(held);
        drop(next.await);
    }
}
