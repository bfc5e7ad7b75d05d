//! The renewal schedule: held locks, ordered by the instant at which each has to be checked. That is
//! a third of the lease after the last confirmed write, or the deadline of a lock with a fixed lease.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::state::hold::Hold;

#[derive(Default)]
pub(crate) struct RenewalSchedule {
    table: Mutex<Table>,
    /// Wakes the watchdog for a hold that is due before its next wake-up.
    earlier: Notify,
}

#[derive(Default)]
struct Table {
    holds: BTreeMap<(Instant, u64), Arc<Hold>>,
    /// When the watchdog will wake up by itself. A hold that is due later need not wake it, so that
    /// a stream of short holds costs it nothing.
    wakes_at: Option<Instant>,
}

impl RenewalSchedule {
    /// Insert a hold, to be checked at this instant, or move it to another instant.
    pub(crate) fn insert(&self, hold: &Arc<Hold>, check_at: Instant) {
        let mut table = self.table();
        // The hold may have just ended, and been removed before this call.
        if !hold.is_live() {
            return;
        }
        if let Some(old) = hold.schedule(check_at) {
            table.holds.remove(&(old, hold.id));
        }
        table.holds.insert((check_at, hold.id), hold.clone());
        if table.wakes_at.is_none_or(|wakes_at| check_at < wakes_at) {
            table.wakes_at = Some(check_at);
            drop(table);
            self.earlier.notify_one();
        }
    }

    pub(crate) fn remove(&self, hold: &Hold) {
        let mut table = self.table();
        if let Some(old) = hold.unschedule() {
            table.holds.remove(&(old, hold.id));
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.table().holds.len()
    }

    /// Wait until a hold may be due before the next wake-up of [`pop_due`](Self::pop_due).
    pub(crate) async fn earlier(&self) {
        self.earlier.notified().await;
    }

    /// Take out up to `limit` holds that are due, and say when to wake up next.
    pub(crate) fn pop_due(&self, now: Instant, limit: usize) -> (Vec<Arc<Hold>>, Option<Instant>) {
        let mut table = self.table();
        let mut due_holds = Vec::new();
        while due_holds.len() < limit {
            match table.holds.first_entry() {
                Some(first) if first.key().0 <= now => {
                    let hold = first.remove();
                    hold.unschedule();
                    due_holds.push(hold);
                }
                _ => break,
            }
        }
        // With an empty schedule, the previous wake-up stands: moving it for each short hold would
        // cost more than waking up once for nothing.
        let next_check = match table.holds.keys().next() {
            Some(&(check_at, _)) => Some(check_at),
            None => table.wakes_at.filter(|&wakes_at| wakes_at > now),
        };
        table.wakes_at = next_check;
        (due_holds, next_check)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
