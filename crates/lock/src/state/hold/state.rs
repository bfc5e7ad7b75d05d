//! What is known of a hold: its phase, its guards, its leases and their ends.

use std::time::Duration;

use tokio::time::Instant;

use crate::config::LockConfig;
use crate::error::LostReason;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Held, as far as this process knows.
    Live,
    /// Released, or being released.
    Released,
    Lost(LostReason),
}

pub(super) struct State {
    pub(super) phase: Phase,
    /// Number of guards, which is the hold count on the server.
    pub(super) depth: u32,
    /// The lease the server is given with every write.
    pub(super) lease: Duration,
    /// Whether the watchdog renews it; once `true`, it stays so until the end.
    pub(super) renewed: bool,
    /// The holds of a reader, each of which has a lease of its own on the server: the guard's id, and
    /// until when the server keeps the hold at least. In the order of their numbers on the server. Empty
    /// for other kinds, whose holds share one lease.
    pub(super) read_holds: Vec<(u32, Instant)>,
    /// The id of the next guard.
    pub(super) next_guard: u32,
    /// Until when the server keeps the key at least, by this machine's monotonic clock: the instant
    /// *before* the last confirmed write was sent, plus its lease.
    pub(super) deadline: Instant,
    /// The instant under which it is in the renewal schedule: when the watchdog has to check it.
    pub(super) scheduled_check: Option<Instant>,
}

impl State {
    /// Set the deadline to the end of the longest read hold: the owner reads until then.
    pub(super) fn set_deadline_of_read_holds(&mut self) {
        if let Some(longest) = self.read_holds.iter().map(|(_, until)| *until).max() {
            self.deadline = longest;
        }
    }

    /// A lock without renewal expires; one that should have been renewed could not be reached.
    pub(super) fn reason_at_deadline(&self) -> LostReason {
        match self.renewed {
            true => LostReason::Unreachable,
            false => LostReason::Expired,
        }
    }

    pub(super) fn next_check(&self, sent: Instant) -> Instant {
        if self.renewed {
            (sent + LockConfig::renewal_interval(self.lease)).min(self.deadline)
        } else {
            self.deadline
        }
    }
}
