//! The quorum of a multi guard: the guards of its members, and whether enough of them are held.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Notify;

use crate::error::LostReason;
use crate::holding::guard::Guard;

/// When several guards count as held.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QuorumRule {
    /// How many of the locks must be held.
    pub(crate) needed: usize,
    /// Subtracted from the time for which the locks are held for certain.
    pub(crate) drift: Duration,
    /// Whether the watchdog renews the locks.
    pub(crate) renewed: bool,
    /// How long a release waits for the slowest server before it goes on in the background.
    pub(crate) release_timeout: Duration,
}

/// The guards of one multi guard, shared with the futures of `lost()`.
pub(crate) struct Quorum {
    pub(crate) rule: QuorumRule,
    state: Mutex<State>,
    /// A guard was added, or all were taken out.
    changed: Notify,
}

struct State {
    /// By number of the member; `None` once they are released.
    guards: Option<BTreeMap<usize, Guard>>,
    /// Set once too few are held; it stays lost, whatever is confirmed or acquired later.
    lost: Option<LostReason>,
}

pub(crate) enum Status {
    /// For so long from now.
    Held(Duration),
    Lost(LostReason),
    Released,
}

impl Quorum {
    pub(crate) fn new(guards: impl IntoIterator<Item = (usize, Guard)>, rule: QuorumRule) -> Self {
        let guards = Some(guards.into_iter().collect());
        Self {
            rule,
            state: Mutex::new(State { guards, lost: None }),
            changed: Notify::new(),
        }
    }

    pub(crate) fn status(&self) -> Status {
        self.state().status(self.rule)
    }

    /// Take the guards out to release them; with the reason if they were lost before.
    pub(crate) fn take(&self) -> (Vec<Guard>, Option<LostReason>) {
        let mut state = self.state();
        let lost = match state.status(self.rule) {
            Status::Lost(reason) => Some(reason),
            Status::Held(_) | Status::Released => None,
        };
        let guards = state.guards.take().unwrap_or_default();
        drop(state);
        self.changed.notify_waiters();
        (guards.into_values().collect(), lost)
    }

    /// Add the guard of a member whose former guard is lost; it is released in the background if the
    /// whole has been lost or released.
    pub(crate) fn add(&self, member: usize, guard: Guard) {
        let mut state = self.state();
        if !matches!(state.status(self.rule), Status::Held(_)) {
            return;
        }
        let former = state
            .guards
            .as_mut()
            .and_then(|guards| guards.insert(member, guard));
        drop(state);
        drop(former);
        self.changed.notify_waiters();
    }

    /// Those of so many members whose lock is not held now; none once the whole is lost or released.
    pub(crate) fn missing(&self, members: usize) -> Vec<usize> {
        let mut state = self.state();
        if !matches!(state.status(self.rule), Status::Held(_)) {
            return Vec::new();
        }
        let held = |member: &usize| {
            let guard = state.guards.as_ref().and_then(|guards| guards.get(member));
            guard.is_some_and(|guard| !guard.valid_for().is_zero())
        };
        (0..members).filter(|member| !held(member)).collect()
    }

    /// A future that ends when a guard has been lost or added since this call, or all have been
    /// released.
    pub(crate) fn changed(&self) -> impl Future<Output = ()> + Send {
        let mut changed = Box::pin(self.changed.notified());
        changed.as_mut().enable();
        let mut losses: FuturesUnordered<_> =
            self.state().held().map(|guard| guard.lost()).collect();
        async move {
            tokio::select! {
                () = changed => {}
                Some(_) = losses.next() => {}
            }
        }
    }

    /// Wait until the whole is lost; forever if it is released in time.
    pub(crate) async fn lost(&self) -> LostReason {
        loop {
            let changed = self.changed();
            match self.status() {
                Status::Lost(reason) => return reason,
                Status::Released => std::future::pending().await,
                Status::Held(valid) => tokio::select! {
                    () = changed => {}
                    // Meanwhile they may have been renewed.
                    () = tokio::time::sleep(valid) => {}
                },
            }
        }
    }

    pub(crate) fn held(&self) -> usize {
        self.state().held().count()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_set()
            .entries(state.guards.iter().flat_map(BTreeMap::values))
            .finish()
    }
}

impl State {
    fn held(&self) -> impl Iterator<Item = &Guard> {
        let guards = self.guards.iter().flat_map(BTreeMap::values);
        guards.filter(|guard| !guard.valid_for().is_zero())
    }

    fn status(&mut self, rule: QuorumRule) -> Status {
        let Some(guards) = &self.guards else {
            return Status::Released;
        };
        if let Some(reason) = self.lost {
            return Status::Lost(reason);
        }
        let mut valid: Vec<_> = guards.values().map(Guard::valid_for).collect();
        valid.sort_unstable();
        // The time after which fewer than needed are left.
        let last = valid.len().checked_sub(rule.needed);
        let shared = last
            .and_then(|index| valid.get(index))
            .copied()
            .unwrap_or_default();
        let valid = shared.saturating_sub(rule.drift);
        if !valid.is_zero() {
            return Status::Held(valid);
        }
        let losses: Vec<_> = guards
            .values()
            .filter_map(|guard| guard.hold().lost_reason())
            .collect();
        let at_deadline = if rule.renewed {
            LostReason::Unreachable
        } else {
            LostReason::Expired
        };
        let reason = match losses.first() {
            Some(reason) if guards.len() - losses.len() < rule.needed => *reason,
            _ => at_deadline,
        };
        self.lost = Some(reason);
        Status::Lost(reason)
    }
}
