//! Locks inside one process, one per key. They exclude the tasks of this process only: two
//! processes with a lock of the same key know nothing of each other.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::OwnedMutexGuard;

use super::Stats;
use super::stats::OfKind;

/// Asynchronous locks by key. Clones share them; a key that nobody holds or awaits costs nothing.
#[derive(Clone, Default)]
pub struct ProcessLocks {
    slots: Slots,
    counters: Arc<OfKind>,
}

type Slots = Arc<Mutex<HashMap<u64, (Arc<tokio::sync::Mutex<()>>, usize)>>>;

/// A key that is held; dropping it lets the next in line have it.
#[must_use = "dropping the guard gives the lock back"]
pub struct ProcessGuard {
    // Dropped first, so that the lock is free before its slot may go.
    _held: OwnedMutexGuard<()>,
    seat: Seat,
    since: Instant,
    counters: Arc<OfKind>,
}

/// A counted interest in a key, held or awaited; the slot goes with the last.
struct Seat {
    slots: Slots,
    key: u64,
}

impl ProcessLocks {
    /// No key held.
    pub fn new() -> Self {
        Self::default()
    }

    /// Hold `key`, after those who asked before. Dropping the future gives up the place in line.
    pub async fn acquire(&self, key: u64) -> ProcessGuard {
        let began = Instant::now();
        let (lock, seat) = {
            let mut slots = lock(&self.slots);
            let (lock, count) = slots.entry(key).or_default();
            *count += 1;
            (lock.clone(), Seat { slots: self.slots.clone(), key })
        };
        let held = lock.lock_owned().await;
        let (since, counters) = (Instant::now(), self.counters.clone());
        counters.acquired(&Ok(Some(())), since - began, true);
        counters.begun();
        ProcessGuard { _held: held, seat, since, counters }
    }

    /// What was done so far: for metrics.
    pub fn stats(&self) -> Stats {
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
        f.debug_struct("ProcessGuard").field("key", &self.seat.key).finish_non_exhaustive()
    }
}

impl Drop for ProcessGuard {
    fn drop(&mut self) {
        self.counters.ended(self.since.elapsed());
    }
}

impl Drop for Seat {
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
