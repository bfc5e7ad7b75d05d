//! Locks within this process, one per key: two processes with a lock of the same key do not exclude each
//! other.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use lock::LockStats;
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

use crate::histogram::Histogram;

/// Asynchronous locks by key, first come, first served. A key that is neither held nor awaited costs
/// nothing.
#[derive(Debug, Default)]
pub struct ProcessLocks(Arc<State>);

/// Each key with its lock, and how many calls hold or await it.
type Slots = HashMap<u64, (Arc<tokio::sync::Mutex<()>>, usize)>;

#[derive(Debug, Default)]
struct State {
    slots: Mutex<Slots>,
    waiting: AtomicU64,
    waited: Histogram,
    held: Histogram,
}

/// A call that holds or awaits a key. Dropping it releases the key to the next waiter; the last one removes its slot.
#[must_use = "dropping the guard releases the lock"]
#[derive(Debug)]
pub struct ProcessGuard {
    state: Arc<State>,
    key: u64,
    /// Where it holds the key: since when.
    held: Option<(OwnedMutexGuard<()>, Instant)>,
}

impl ProcessLocks {
    /// Acquires `key`, after the callers that came before, waiting as long as it takes. Dropping the
    /// future gives up waiting, and its place.
    pub async fn acquire(&self, key: u64) -> ProcessGuard {
        let started = Instant::now();
        let lock = {
            let mut slots = self.0.slots.lock();
            let (lock, count) = slots.entry(key).or_default();
            *count += 1;
            lock.clone()
        };
        self.0.waiting.fetch_add(1, Relaxed);
        let mut guard = ProcessGuard { state: self.0.clone(), key, held: None };
        let held = lock.lock_owned().await;
        self.0.waiting.fetch_sub(1, Relaxed);
        self.0.waited.add_duration(started.elapsed());
        guard.held = Some((held, Instant::now()));
        guard
    }

    /// Statistics of the kind `process`.
    pub fn stats(&self) -> LockStats {
        // First, so that a key that is acquired meanwhile counts as held.
        let held = self.0.held.counted();
        let waited = self.0.waited.counted();
        LockStats {
            kind: "process",
            acquired: waited.count,
            held_now: waited.count.saturating_sub(held.count),
            waiting_now: self.0.waiting.load(Relaxed),
            waited,
            held,
            ..LockStats::default()
        }
    }
}

impl Drop for ProcessGuard {
    fn drop(&mut self) {
        // The lock is free before its slot may be removed.
        match self.held.take() {
            Some((_held, since)) => self.state.held.add_duration(since.elapsed()),
            None => drop(self.state.waiting.fetch_sub(1, Relaxed)),
        }
        let mut slots = self.state.slots.lock();
        if let Some((_, count)) = slots.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                slots.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_key_is_held_once_and_leaves_nothing() {
        let locks = ProcessLocks::default();
        let held = locks.acquire(7).await;
        let other = locks.acquire(8).await;
        let now =
            || (locks.stats().held_now, locks.stats().waiting_now, locks.0.slots.lock().len());
        let mut next = Box::pin(locks.acquire(7));
        let mut given_up = Box::pin(locks.acquire(7));
        assert!(timeout(Duration::ZERO, &mut next).await.is_err());
        assert!(timeout(Duration::ZERO, &mut given_up).await.is_err());
        assert_eq!(now(), (2, 2, 2));
        drop((given_up, other));
        assert_eq!(now(), (1, 1, 1));
        drop(held);
        let next = next.await;
        assert_eq!(now(), (1, 0, 1));
        drop(next);
        assert_eq!((now(), locks.stats().acquired), ((0, 0, 0), 3));
    }
}
