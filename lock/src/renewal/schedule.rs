//! The renewal schedule: held locks, ordered by the instant at which each has to be checked. That is
//! a third of the lease after the last confirmed write, or the deadline of a lock with a fixed lease.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::holding::hold::Hold;

/// The schedule of all holds of a process.
#[derive(Default)]
pub(crate) struct RenewalSchedule {
    table: Mutex<Table>,
    /// Wakes the watchdog for a hold that is due before its next wake-up.
    earlier: Notify,
}

#[derive(Default)]
struct Table {
    due: BTreeMap<(Instant, u64), Arc<Hold>>,
    /// When the watchdog will wake up by itself. A hold that is due later need not wake it, so that
    /// a stream of short holds costs it nothing.
    wakes_at: Option<Instant>,
}

impl RenewalSchedule {
    /// Insert a hold, or move it to another instant.
    pub(crate) fn insert(&self, hold: &Arc<Hold>, at: Instant) {
        let mut table = self.table();
        // It may have just ended, and its removal may have come before this.
        if !hold.is_live() {
            return;
        }
        if let Some(old) = hold.replace_due(Some(at)) {
            table.due.remove(&(old, hold.id));
        }
        table.due.insert((at, hold.id), hold.clone());
        if table.wakes_at.is_none_or(|wakes_at| at < wakes_at) {
            table.wakes_at = Some(at);
            drop(table);
            self.earlier.notify_one();
        }
    }

    /// Remove a hold.
    pub(crate) fn remove(&self, hold: &Hold) {
        let mut table = self.table();
        if let Some(old) = hold.replace_due(None) {
            table.due.remove(&(old, hold.id));
        }
    }

    /// Number of holds.
    pub(crate) fn len(&self) -> usize {
        self.table().due.len()
    }

    /// Wait until a hold is due before the next wake-up of [`pop_due`](Self::pop_due).
    pub(crate) async fn earlier(&self) {
        self.earlier.notified().await;
    }

    /// Take out up to `limit` holds that are due, and say when to wake up next.
    pub(crate) fn pop_due(&self, now: Instant, limit: usize) -> (Vec<Arc<Hold>>, Option<Instant>) {
        let mut table = self.table();
        let mut due = Vec::new();
        while due.len() < limit {
            match table.due.first_entry() {
                Some(first) if first.key().0 <= now => {
                    let hold = first.remove();
                    hold.replace_due(None);
                    due.push(hold);
                }
                _ => break,
            }
        }
        // At the limit, a renewal that ends wakes the watchdog, not the clock.
        // With an empty schedule, the previous wake-up stands: moving it for each short hold would
        // cost more than waking up once for nothing.
        let next = match table.due.keys().next() {
            _ if limit == 0 => None,
            Some(&(at, _)) => Some(at),
            None => table.wakes_at.filter(|&at| at > now),
        };
        table.wakes_at = next;
        (due, next)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
