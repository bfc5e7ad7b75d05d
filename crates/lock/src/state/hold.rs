//! One unbroken span of holding a lock, from the first acquire to the last release or the loss.
//! A state machine over local knowledge: no I/O, no timers.
//!
//! An owner that loses a lock and acquires it again has a new hold: guards of the old one never
//! affect the new one.

mod state;

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::clamp_lease;
use crate::error::LostReason;
use crate::kind::Kind;
use crate::request::LockRequest;
use crate::state::hold::state::{Phase, State};

/// A hold, shared by its guards and the watchdog.
pub(crate) struct Hold {
    /// Identifies the hold, and orders holds that are due at the same instant.
    pub(crate) id: u64,
    pub(crate) request: LockRequest,
    /// The fencing token of the first acquire, 0 for kinds without one.
    pub(crate) fence: u64,
    pub(crate) since: Instant,
    state: Mutex<State>,
    /// Wakes the futures of `lost()`.
    changed: Notify,
    /// Cancelled when it is lost, once somebody has asked for it.
    token: OnceLock<CancellationToken>,
}

/// What a guard that is released has to do.
pub(crate) enum Release {
    /// Report it lost, if nothing has noticed yet that its deadline has passed.
    Lost(LostReason),
    /// Set the hold count on the server to `depth`; 0 for the last guard.
    Send {
        depth: u32,
        /// The number of the hold that ends, among those of a reader.
        hold_number: u32,
        /// When the lease of the hold that ends would have ended.
        lease_end: Instant,
        /// The lease of the holds that remain.
        lease: Duration,
    },
}

/// What the watchdog has to do with a hold that is due.
pub(crate) enum RenewalAction {
    /// Nothing: the hold has ended.
    Forget,
    /// Check it again at this instant.
    CheckAt(Instant),
    /// Renew it, trying no longer than until the deadline.
    Renew { lease: Duration, deadline: Instant },
    /// Report it lost: its deadline has passed.
    ReportLost(LostReason),
}

impl Hold {
    /// A hold without a guard yet; see [`acquired`](Self::acquired).
    pub(crate) fn new(
        id: u64,
        request: LockRequest,
        fence: u64,
        lease: Duration,
        renewed: bool,
    ) -> Self {
        let since = Instant::now();
        let state = State {
            phase: Phase::Live,
            depth: 0,
            lease,
            renewed,
            read_holds: Vec::new(),
            next_guard: 0,
            deadline: since,
            scheduled_check: None,
        };
        Self {
            id,
            request,
            fence,
            since,
            state: Mutex::new(state),
            changed: Notify::new(),
            token: OnceLock::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_live(&self) -> bool {
        self.state().phase == Phase::Live
    }

    /// The hold count after one more acquire, and the lease to ask for: re-entry never shortens a
    /// lease.
    pub(crate) fn next_acquire(&self, lease: Duration, now: Instant) -> (u32, Duration) {
        let state = self.state();
        let remaining_lease = state.deadline.saturating_duration_since(now);
        let minimum_lease = if state.renewed {
            state.lease.max(remaining_lease)
        } else {
            remaining_lease
        };
        (state.depth + 1, clamp_lease(lease.max(minimum_lease)))
    }

    /// The server confirmed one more acquire that was sent at `sent`. Returns when the watchdog has
    /// to check the hold, and the id of the new guard; `None` when the hold has ended meanwhile.
    pub(crate) fn acquired(
        &self,
        sent: Instant,
        lease: Duration,
        renew: bool,
    ) -> Option<(Instant, u32)> {
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
        let until = sent + lease;
        state.deadline = state.deadline.max(until);
        let guard = state.next_guard;
        state.next_guard = guard.wrapping_add(1);
        if self.request.kind == Kind::Read {
            state.read_holds.push((guard, until));
        }
        let mut check_at = state.next_check(sent);
        // An earlier read hold keeps its own lease, which may end first.
        if state.read_holds.len() > 1 {
            check_at = state
                .scheduled_check
                .map_or(check_at, |scheduled| scheduled.min(check_at));
        }
        Some((check_at, guard))
    }

    /// Release one guard. The last one ends the hold at once, before the server is told, so that the
    /// watchdog does not mistake the missing key for a loss.
    pub(crate) fn release(&self, guard: u32, now: Instant) -> Release {
        let mut state = self.state();
        match state.phase {
            Phase::Lost(reason) => return Release::Lost(reason),
            // Not reachable while every guard is released once; the answer is right all the same.
            Phase::Released => return Release::Lost(LostReason::Expired),
            // `lost` and the watchdog report the same at the deadline.
            Phase::Live if now >= state.deadline => {
                return Release::Lost(state.reason_at_deadline());
            }
            Phase::Live => {}
        }
        let mut hold_number = state.depth;
        let mut lease_end = state.deadline;
        state.depth = state.depth.saturating_sub(1);
        if state.depth == 0 {
            state.phase = Phase::Released;
        } else if let Some(index) = state.read_holds.iter().position(|(id, _)| *id == guard) {
            // As the script does it: the last hold takes the number of the one that ends.
            lease_end = state.read_holds.swap_remove(index).1;
            hold_number = u32::try_from(index).unwrap_or(u32::MAX).saturating_add(1);
            state.set_deadline_of_read_holds();
            self.changed.notify_waiters();
        }
        Release::Send {
            depth: state.depth,
            hold_number,
            lease_end,
            lease: state.lease,
        }
    }

    /// The release of one of several read holds was not answered, so that it is unknown which of their
    /// leases remain on the server: count on the shortest. `lease_end` is that of the released hold.
    pub(crate) fn read_release_in_doubt(&self, lease_end: Instant) {
        let mut state = self.state();
        let shortest = state.read_holds.iter().map(|(_, until)| *until).min();
        let shortest = shortest.map_or(lease_end, |shortest| shortest.min(lease_end));
        for (_, until) in &mut state.read_holds {
            *until = shortest;
        }
        state.set_deadline_of_read_holds();
        drop(state);
        self.changed.notify_waiters();
    }

    /// When the watchdog has to check a hold with a fixed lease; `None` for one that is renewed or has
    /// ended.
    pub(crate) fn fixed_deadline(&self) -> Option<Instant> {
        let state = self.state();
        (state.phase == Phase::Live && !state.renewed).then_some(state.deadline)
    }

    /// The server confirmed a write of this lease that was sent at `sent`. Returns when the watchdog has to check
    /// the hold; `None` when it has ended.
    pub(crate) fn confirmed(&self, sent: Instant, lease: Duration) -> Option<Instant> {
        let mut state = self.state();
        if state.phase != Phase::Live {
            return None;
        }
        let until = sent + lease;
        state.deadline = state.deadline.max(until);
        for (_, read_until) in &mut state.read_holds {
            *read_until = until.max(*read_until);
        }
        Some(state.next_check(sent))
    }

    /// As [`confirmed`](Self::confirmed), when another client had shortened the lease to `remaining_lease`
    /// and will do so again: from now on that is the lease.
    pub(crate) fn shortened(&self, sent: Instant, remaining_lease: Duration) -> Option<Instant> {
        let mut state = self.state();
        if state.phase != Phase::Live {
            return None;
        }
        state.lease = state.lease.min(clamp_lease(remaining_lease));
        let until = sent + state.lease;
        state.deadline = until;
        for (_, read_until) in &mut state.read_holds {
            *read_until = until;
        }
        let check_at = state.next_check(sent);
        drop(state);
        self.changed.notify_waiters();
        Some(check_at)
    }

    /// End the hold as lost. `false`: it had ended before.
    pub(crate) fn mark_lost(&self, reason: LostReason) -> bool {
        let mut state = self.state();
        if state.phase != Phase::Live {
            return false;
        }
        state.phase = Phase::Lost(reason);
        drop(state);
        self.changed.notify_waiters();
        if let Some(token) = self.token.get() {
            token.cancel();
        }
        true
    }

    /// A token that is cancelled when the hold is marked as lost, which the watchdog does at the deadline,
    /// or when `stop` is cancelled, which ends the watchdog.
    pub(crate) fn token(&self, stop: &CancellationToken) -> CancellationToken {
        let token = self.token.get_or_init(|| stop.child_token()).clone();
        // It may have been lost before there was a token.
        if self.lost_reason().is_some() {
            token.cancel();
        }
        token
    }

    pub(crate) fn renewal_action(&self, now: Instant) -> RenewalAction {
        let state = self.state();
        if state.phase != Phase::Live {
            return RenewalAction::Forget;
        }
        if now >= state.deadline {
            return RenewalAction::ReportLost(state.reason_at_deadline());
        }
        if state.renewed {
            return RenewalAction::Renew {
                lease: state.lease,
                deadline: state.deadline,
            };
        }
        RenewalAction::CheckAt(state.deadline)
    }

    /// Note under which instant the hold is in the renewal schedule now: the watchdog checks it then.
    /// Returns the instant under which it was there before.
    pub(crate) fn schedule(&self, check_at: Instant) -> Option<Instant> {
        self.state().scheduled_check.replace(check_at)
    }

    /// Note that the hold is no longer in the renewal schedule. Returns the instant under which it was
    /// there.
    pub(crate) fn unschedule(&self) -> Option<Instant> {
        self.state().scheduled_check.take()
    }

    /// The lease that every write of this hold asks for.
    pub(crate) fn lease(&self) -> Duration {
        self.state().lease
    }

    /// Until when the server keeps the key at least.
    pub(crate) fn deadline(&self) -> Instant {
        self.state().deadline
    }

    /// How long the lock is held for certain from now; zero once it is lost or released.
    pub(crate) fn valid_for(&self) -> Duration {
        let state = self.state();
        match state.phase {
            Phase::Live => state.deadline.saturating_duration_since(Instant::now()),
            _ => Duration::ZERO,
        }
    }

    /// Why it was lost; `None` if it was not.
    pub(crate) fn lost_reason(&self) -> Option<LostReason> {
        let state = self.state();
        match state.phase {
            Phase::Lost(reason) => Some(reason),
            Phase::Live if Instant::now() >= state.deadline => Some(state.reason_at_deadline()),
            Phase::Live | Phase::Released => None,
        }
    }

    /// Wait until the hold is lost; forever if it is released in time. Does not depend on the
    /// watchdog: it checks the deadline itself.
    pub(crate) async fn lost(&self) -> LostReason {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(reason) = self.lost_reason() {
                return reason;
            }
            // A released hold is not lost at its deadline.
            let (released, deadline) = {
                let state = self.state();
                (state.phase == Phase::Released, state.deadline)
            };
            if released {
                std::future::pending::<()>().await;
            }
            tokio::select! {
                () = &mut changed => {}
                () = tokio::time::sleep_until(deadline) => {}
            }
        }
    }
}
