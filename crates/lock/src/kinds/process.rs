//! Locks within one process, one per key, without Redis: two processes with a lock of the same key do
//! not exclude each other.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::OwnedMutexGuard;

use crate::stats::{KindCounters, LockStats};

/// Asynchronous locks by key, first come, first served. Clones share them; a key that is neither held
/// nor awaited costs nothing.
#[derive(Clone, Default)]
pub struct ProcessLocks {
    slots: Slots,
    counters: Arc<KindCounters>,
}

type Slots = Arc<Mutex<HashMap<u64, (Arc<tokio::sync::Mutex<()>>, usize)>>>;

/// A held key; dropping it releases the key to the next waiter.
#[must_use = "dropping the guard releases the lock"]
pub struct ProcessGuard {
    // Dropped first, so that the lock is free before its slot may be removed.
    _held: OwnedMutexGuard<()>,
    slot: SlotRef,
    since: Instant,
    counters: Arc<KindCounters>,
}

/// A counted reference to the slot of a key, held or awaited; the slot is removed with the last.
struct SlotRef {
    slots: Slots,
    key: u64,
}

impl ProcessLocks {
    /// An empty set of locks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Acquire `key`, after the callers that came before, waiting as long as it takes.
    ///
    /// # Cancellation
    /// Dropping the future gives up waiting, and its place.
    pub async fn acquire(&self, key: u64) -> ProcessGuard {
        let started = Instant::now();
        let (lock, slot) = {
            let mut slots = lock(&self.slots);
            let (lock, count) = slots.entry(key).or_default();
            *count += 1;
            (lock.clone(), SlotRef { slots: self.slots.clone(), key })
        };
        let waiting = self.counters.waiting();
        let held = lock.lock_owned().await;
        drop(waiting);
        let (since, counters) = (Instant::now(), self.counters.clone());
        counters.acquired(&Ok(Some(())), since - started, true);
        counters.hold_started();
        ProcessGuard { _held: held, slot, since, counters }
    }

    /// Statistics, for metrics.
    pub fn stats(&self) -> LockStats {
        self.counters.read("process")
    }

    /// Number of keys held or awaited.
    pub fn len(&self) -> usize {
        lock(&self.slots).len()
    }

    /// Whether no key is held or awaited.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for ProcessLocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessLocks").field("len", &self.len()).finish()
    }
}

impl fmt::Debug for ProcessGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessGuard").field("key", &self.slot.key).finish_non_exhaustive()
    }
}

impl Drop for ProcessGuard {
    fn drop(&mut self) {
        self.counters.hold_ended(self.since.elapsed());
    }
}

impl Drop for SlotRef {
    fn drop(&mut self) {
        let mut slots = lock(&self.slots);
        if let Some((_, count)) = slots.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                slots.remove(&self.key);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
