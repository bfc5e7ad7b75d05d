//! The consumer's lease: for how long the entries that this process holds, or that were delivered to it, are certainly
//! still its own. Others take them over when its heartbeat has not changed for [`DEAD_AFTER`]; so it may begin to commit
//! one only within [`LEASE`] of a heartbeat, and what it read before its lease lapsed it has to read again. Judged by the
//! monotonic clock of this node, which no step of a wall clock touches. No I/O may come in here.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A consumer of our kind whose heartbeat has not changed for this long is dead, or stands still.
pub(super) const DEAD_AFTER: Duration = Duration::from_secs(5);

/// How long after a heartbeat was sent the entries are ours. The rest of [`DEAD_AFTER`] is for the first statement of a
/// transaction to arrive; from then on the order's row keeps others out.
const LEASE: Duration = Duration::from_secs(2);

/// The lease.
#[derive(Default)]
pub(super) struct Lease(Mutex<State>);

#[derive(Default)]
struct State {
    generation: u64,
    renewed: Option<Instant>,
}

impl Lease {
    /// Takes note of a heartbeat that Redis has confirmed and that was sent at `sent`.
    pub fn renew(&self, sent: Instant) {
        let mut state = self.0.lock();
        if state.renewed.is_none_or(|before| sent.saturating_duration_since(before) > LEASE) {
            state.generation += 1;
        }
        state.renewed = Some(sent);
    }

    /// Ends it: what was delivered before is not ours any more.
    pub fn end(&self) {
        self.0.lock().renewed = None;
    }

    /// Its generation, which rises when it lapses. What was read in an earlier one may be another consumer's by now.
    pub fn generation(&self) -> u64 {
        self.0.lock().generation
    }

    /// Whether what was read in this generation is ours at this moment.
    pub fn holds(&self, generation: u64) -> bool {
        let state = self.0.lock();
        state.generation == generation && state.renewed.is_some_and(|at| at.elapsed() <= LEASE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lapses_without_heartbeats_and_what_was_read_before_is_not_ours_after_it() {
        let lease = Lease::default();
        assert!(!lease.holds(lease.generation()), "no heartbeat yet");
        let now = Instant::now();
        let Some(old) = now.checked_sub(LEASE + Duration::from_millis(1)) else { return };
        lease.renew(old);
        let read_in = lease.generation();
        assert!(!lease.holds(read_in));
        lease.renew(old + LEASE);
        assert!(lease.holds(read_in), "renewed in time");
        lease.renew(old + 2 * LEASE + Duration::from_millis(1));
        assert!(!lease.holds(read_in) && lease.holds(lease.generation()));
        lease.end();
        lease.renew(Instant::now());
        assert!(!lease.holds(read_in) && lease.holds(lease.generation()));
    }
}
