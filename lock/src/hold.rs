//! One unbroken span of holding a lock, from the first acquire to the last release or the loss.
//! A state machine over local knowledge only: no I/O, no timers.
//!
//! An owner that loses a lock and takes it again has a new hold: guards of the old one never touch
//! the new one.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::claim::Claim;
use super::{LockConfig, LostReason};

/// A hold, shared by its guards and the watchdog.
pub(super) struct Hold {
    /// Tells holds apart, and orders those that are due at the same instant.
    pub(super) id: u64,
    /// Whose hold of what it is.
    pub(super) claim: Claim,
    /// The token it was taken with, 0 where the kind has none.
    pub(super) fence: u64,
    /// When it was begun.
    pub(super) since: Instant,
    state: Mutex<State>,
    /// Wakes the futures of `lost()`.
    changed: Notify,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Held, as far as this process knows.
    Live,
    /// Given back, or being given back.
    Over,
    /// Can no longer be believed.
    Lost(LostReason),
}

struct State {
    phase: Phase,
    /// Guards that live; the server is told this number.
    depth: u32,
    /// The lease the server is given with every write.
    lease: Duration,
    /// Whether the watchdog renews it. Once it does, it does so until the end.
    renewed: bool,
    /// Until when the server keeps the key at least, on this machine's monotonic clock: the moment
    /// *before* the last confirmed write was sent, plus the lease given with it.
    deadline: Instant,
    /// Under which instant the watchdog has it filed.
    due: Option<Instant>,
}

/// What a leaving guard has to do.
pub(super) enum Leave {
    /// Nothing: the lock was lost before.
    Lost(LostReason),
    /// Tell the server that `depth` holds remain.
    Remaining { depth: u32, lease: Duration },
    /// Tell the server that the lock is free.
    Last { lease: Duration },
}

/// What the watchdog has to do with a hold that is due.
pub(super) enum Verdict {
    /// Forget it.
    Over,
    /// Look again later.
    Wait(Instant),
    /// Renew it, trying no longer than until the deadline.
    Renew { lease: Duration, deadline: Instant },
    /// Its time has passed.
    Lose(LostReason),
}

impl Hold {
    pub(super) fn new(id: u64, claim: Claim, fence: u64, lease: Duration, renewed: bool) -> Self {
        let since = Instant::now();
        let state =
            State { phase: Phase::Live, depth: 0, lease, renewed, deadline: since, due: None };
        Self { id, claim, fence, since, state: Mutex::new(state), changed: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_live(&self) -> bool {
        self.state().phase == Phase::Live
    }

    /// Depth after one more acquire, and the lease to ask for: re-entry never shortens a lease.
    pub(super) fn next(&self, lease: Duration, now: Instant) -> (u32, Duration) {
        let state = self.state();
        let left = state.deadline.saturating_duration_since(now);
        let keep = if state.renewed { state.lease.max(left) } else { left };
        (state.depth + 1, super::config::clamp_lease(lease.max(keep)))
    }

    /// The server confirmed one more acquire that was sent at `sent`. `false`: the hold was lost
    /// meanwhile. Otherwise says when the watchdog has to look at it.
    pub(super) fn entered(&self, sent: Instant, lease: Duration, renew: bool) -> Option<Instant> {
        let mut state = self.state();
        if state.phase != Phase::Live {
            return None;
        }
        state.depth += 1;
        if renew && !state.renewed {
            state.renewed = true;
            state.lease = lease;
        } else {
            state.lease = state.lease.max(lease);
        }
        state.deadline = state.deadline.max(sent + lease);
        Some(state.next_look(sent))
    }

    /// One guard leaves. A last one ends the hold at once, before the server is told, so that the
    /// watchdog does not mistake the missing key for a loss.
    pub(super) fn leave(&self) -> Leave {
        let mut state = self.state();
        match state.phase {
            Phase::Lost(reason) => return Leave::Lost(reason),
            // Not reachable while every guard leaves once; the answer is right all the same.
            Phase::Over => return Leave::Lost(LostReason::Expired),
            Phase::Live => {}
        }
        state.depth = state.depth.saturating_sub(1);
        let lease = state.lease;
        if state.depth > 0 {
            return Leave::Remaining { depth: state.depth, lease };
        }
        state.phase = Phase::Over;
        Leave::Last { lease }
    }

    /// The server confirmed a write that was sent at `sent`. Says when the watchdog has to look.
    pub(super) fn confirmed(&self, sent: Instant) -> Option<Instant> {
        let mut state = self.state();
        if state.phase != Phase::Live {
            return None;
        }
        state.deadline = state.deadline.max(sent + state.lease);
        Some(state.next_look(sent))
    }

    /// End the hold as lost. `false`: it had ended before.
    pub(super) fn lose(&self, reason: LostReason) -> bool {
        let mut state = self.state();
        if state.phase != Phase::Live {
            return false;
        }
        state.phase = Phase::Lost(reason);
        drop(state);
        self.changed.notify_waiters();
        true
    }

    /// What the watchdog has to do now.
    pub(super) fn verdict(&self, now: Instant) -> Verdict {
        let state = self.state();
        if state.phase != Phase::Live {
            return Verdict::Over;
        }
        if now >= state.deadline {
            return Verdict::Lose(state.reason_at_deadline());
        }
        if state.renewed {
            return Verdict::Renew { lease: state.lease, deadline: state.deadline };
        }
        Verdict::Wait(state.deadline)
    }

    /// Replace the instant under which the watchdog has it filed; returns the one before.
    pub(super) fn file(&self, due: Option<Instant>) -> Option<Instant> {
        std::mem::replace(&mut self.state().due, due)
    }

    /// Until when the server keeps the key at least.
    pub(super) fn deadline(&self) -> Instant {
        self.state().deadline
    }

    /// How long the lock can be relied upon from now; zero once it is lost or given back.
    pub(super) fn valid_for(&self) -> Duration {
        let state = self.state();
        match state.phase {
            Phase::Live => state.deadline.saturating_duration_since(Instant::now()),
            _ => Duration::ZERO,
        }
    }

    /// Wait until the hold can no longer be believed; forever if it is given back in time. Needs
    /// no watchdog: it looks at the deadline itself.
    pub(super) async fn lost(&self) -> LostReason {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let deadline = {
                let state = self.state();
                match state.phase {
                    Phase::Lost(reason) => return reason,
                    Phase::Over => None,
                    Phase::Live if Instant::now() >= state.deadline => {
                        return state.reason_at_deadline();
                    }
                    Phase::Live => Some(state.deadline),
                }
            };
            match deadline {
                None => std::future::pending().await,
                Some(at) => tokio::select! {
                    () = &mut changed => {}
                    () = tokio::time::sleep_until(at) => {}
                },
            }
        }
    }
}

impl State {
    /// A lock nobody renews expires; one that should have been renewed could not be reached.
    fn reason_at_deadline(&self) -> LostReason {
        if self.renewed { LostReason::Unreachable } else { LostReason::Expired }
    }

    fn next_look(&self, sent: Instant) -> Instant {
        if self.renewed {
            (sent + LockConfig::renew_every(self.lease)).min(self.deadline)
        } else {
            self.deadline
        }
    }
}
