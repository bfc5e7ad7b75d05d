//! The multi guard: several guards that count as one as long as a quorum of them is held. All of them
//! for a multi-lock, a majority of them for a majority lock.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::{Error, LostReason};
use crate::holding::guard::Guard;
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;

/// Several locks held as one.
///
/// [`release`](Self::release) releases all of them and reports the outcome. Dropping the guard
/// releases them in the background, without blocking, and also outside a runtime.
#[must_use = "dropping the guard releases the locks"]
pub struct MultiGuard {
    state: Arc<State>,
}

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

/// The guards, shared with the futures of `lost()`.
struct State {
    rule: QuorumRule,
    /// `None` once they are released.
    guards: Mutex<Option<Vec<Guard>>>,
}

impl MultiGuard {
    pub(crate) fn new(guards: Vec<Guard>, rule: QuorumRule) -> Self {
        Self { state: Arc::new(State { rule, guards: Mutex::new(Some(guards)) }) }
    }

    /// Release all of the locks, on all servers at once.
    ///
    /// # Cancellation
    /// Once polled, it is finished in the background even if the future is dropped.
    ///
    /// # Errors
    /// The first error, when fewer locks than had to be held were still held and are known to be
    /// released: [`Error::Lost`], [`Error::NotHeld`], [`Error::Unavailable`] or [`Error::Unknown`],
    /// each as for [`Guard::release`]. Every other lock has been released nevertheless; where a
    /// server was not reached, the release is repeated in the background.
    pub async fn release(self) -> Result<(), Error> {
        let guards = self.state.take().unwrap_or_default();
        let QuorumRule { needed, release_timeout, .. } = self.state.rule;
        let mut released = 0;
        let mut first = None;
        for result in release_all(guards, release_timeout).await {
            match result {
                Ok(()) => released += 1,
                Err(error) => first = first.or(Some(error)),
            }
        }
        match first {
            Some(error) if released < needed => Err(error),
            _ => Ok(()),
        }
    }

    /// Wait until the locks are lost: fewer of them are held than must be. Never ends if they are
    /// released in time. The future is independent of the guard.
    pub fn lost(&self) -> impl Future<Output = LostReason> + Send + use<> {
        let state = self.state.clone();
        let mut losses: FuturesUnordered<_> =
            state.guards().iter().flatten().map(Guard::lost).collect();
        async move {
            let QuorumRule { needed, renewed, .. } = state.rule;
            let at_deadline = if renewed { LostReason::Unreachable } else { LostReason::Expired };
            loop {
                let Some(valid) = state.valid_for() else { return std::future::pending().await };
                tokio::select! {
                    biased;
                    Some(reason) = losses.next(), if !losses.is_empty() => {
                        if losses.len() < needed {
                            return reason;
                        }
                    }
                    () = tokio::time::sleep(valid) => {
                        // Meanwhile they may have been renewed, or released.
                        if state.valid_for() == Some(Duration::ZERO) {
                            return at_deadline;
                        }
                    }
                }
            }
        }
    }

    /// How long from now the locks are held for certain, by this machine's monotonic clock:
    /// all of them for a multi-lock, a majority of them (less the drift of clocks) for a majority
    /// lock. Each is counted from before its last confirmed command was sent. Zero once lost.
    pub fn valid_for(&self) -> Duration {
        self.state.valid_for().unwrap_or_default()
    }

    /// How many of the locks are held now, as far as this process knows.
    pub fn held(&self) -> usize {
        self.state.guards().iter().flatten().filter(|guard| !guard.valid_for().is_zero()).count()
    }
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut set = f.debug_set();
        set.entries(self.state.guards().iter().flatten()).finish()
    }
}

impl Drop for MultiGuard {
    fn drop(&mut self) {
        // Not left to the last reference: a future of `lost()` may live longer.
        drop(self.state.take());
    }
}

impl State {
    fn guards(&self) -> MutexGuard<'_, Option<Vec<Guard>>> {
        self.guards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<Vec<Guard>> {
        self.guards().take()
    }

    /// As [`MultiGuard::valid_for`]; `None` once released.
    fn valid_for(&self) -> Option<Duration> {
        let mut valid: Vec<_> = self.guards().as_ref()?.iter().map(Guard::valid_for).collect();
        valid.sort_unstable();
        // The time after which fewer than needed are left.
        let last = valid.len().checked_sub(self.rule.needed);
        let shared = last.and_then(|index| valid.get(index)).copied().unwrap_or_default();
        Some(shared.saturating_sub(self.rule.drift))
    }
}

/// Release guards, all at once; what takes longer than `timeout` goes on in the background.
pub(crate) async fn release_all(guards: Vec<Guard>, timeout: Duration) -> Vec<Result<(), Error>> {
    join_all(guards.into_iter().map(|guard| async move {
        tokio::time::timeout(timeout, guard.release()).await.unwrap_or_else(|_| {
            let cause = format!("no answer within {timeout:?}");
            Err(Error::Unknown { operation: "release", cause })
        })
    }))
    .await
}
