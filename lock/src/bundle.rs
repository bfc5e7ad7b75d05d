//! Guards of several locks that count as one: all of them (a multi-lock) or a majority of them (a
//! majority lock). Only what is held; how it was taken is in [`super::multi`] and
//! [`super::majority`].

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tokio::time::timeout;

use super::{Error, Guard, LostReason};

/// Several locks held as one, to be given back together.
///
/// [`release`](Self::release) gives all of them back and says whether that worked. Dropping the
/// guard does so in the background, without blocking, and also where no runtime is.
#[must_use = "dropping the guard gives the locks back"]
pub struct MultiGuard {
    bundle: Arc<Bundle>,
}

/// What has to stay true for the guards to count as one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    /// How many of the locks must be held.
    pub(super) needed: usize,
    /// What is taken off the time for which a lease can be relied upon.
    pub(super) drift: Duration,
    /// Whether the watchdog renews the locks.
    pub(super) renewed: bool,
    /// How long giving back may wait for the slowest server before it goes on in the background.
    pub(super) patience: Duration,
}

/// The guards, shared with the futures of `lost()`.
struct Bundle {
    terms: Terms,
    /// `None` once they are given back.
    guards: Mutex<Option<Vec<Guard>>>,
}

impl MultiGuard {
    pub(super) fn new(guards: Vec<Guard>, terms: Terms) -> Self {
        Self { bundle: Arc::new(Bundle { terms, guards: Mutex::new(Some(guards)) }) }
    }

    /// Give all of the locks back, on all servers at once. Once begun, it is finished even if the
    /// future is dropped.
    ///
    /// # Errors
    /// The first failure, when fewer of the locks than had to be held were still held and are known
    /// to be given back: [`Error::Lost`], [`Error::NotHeld`], [`Error::Unavailable`] or
    /// [`Error::Unknown`], each as for [`Guard::release`]. Every other lock has been given back
    /// nevertheless; what could not be reached is repeated in the background.
    pub async fn release(self) -> Result<(), Error> {
        let guards = self.bundle.take().unwrap_or_default();
        let Terms { needed, patience, .. } = self.bundle.terms;
        let mut released = 0;
        let mut first = None;
        for result in give_back(guards, patience).await {
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

    /// Wait until the locks can no longer be believed: fewer of them are left than must be held.
    /// Never ends if they are given back in time. The future is independent of the guard.
    pub fn lost(&self) -> impl Future<Output = LostReason> + Send + use<> {
        let bundle = self.bundle.clone();
        let mut losses: FuturesUnordered<_> =
            bundle.guards().iter().flatten().map(Guard::lost).collect();
        async move {
            let Terms { needed, renewed, .. } = bundle.terms;
            let at_deadline = if renewed { LostReason::Unreachable } else { LostReason::Expired };
            loop {
                let Some(valid) = bundle.valid_for() else { return std::future::pending().await };
                tokio::select! {
                    biased;
                    Some(reason) = losses.next(), if !losses.is_empty() => {
                        if losses.len() < needed {
                            return reason;
                        }
                    }
                    () = tokio::time::sleep(valid) => {
                        // Meanwhile it may have been renewed, or given back.
                        if bundle.valid_for() == Some(Duration::ZERO) {
                            return at_deadline;
                        }
                    }
                }
            }
        }
    }

    /// For how long from now the locks are held for certain, by this machine's monotonic clock:
    /// all of them for a multi-lock, a majority of them (less the drift of clocks) for a majority
    /// lock. Each is counted from before its last confirmed command was sent. Zero once lost.
    pub fn valid_for(&self) -> Duration {
        self.bundle.valid_for().unwrap_or_default()
    }

    /// How many of the locks are held now, as far as this process knows.
    pub fn held(&self) -> usize {
        self.bundle.guards().iter().flatten().filter(|guard| !guard.valid_for().is_zero()).count()
    }
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut set = f.debug_set();
        set.entries(self.bundle.guards().iter().flatten()).finish()
    }
}

impl Drop for MultiGuard {
    fn drop(&mut self) {
        // Not left to the last reference: a future of `lost()` may live on.
        drop(self.bundle.take());
    }
}

impl Bundle {
    fn guards(&self) -> MutexGuard<'_, Option<Vec<Guard>>> {
        self.guards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<Vec<Guard>> {
        self.guards().take()
    }

    /// As [`MultiGuard::valid_for`]; `None` once given back.
    fn valid_for(&self) -> Option<Duration> {
        let mut valid: Vec<_> = self.guards().as_ref()?.iter().map(Guard::valid_for).collect();
        valid.sort_unstable();
        // The time after which fewer than needed are left.
        let last = valid.len().checked_sub(self.terms.needed);
        let shared = last.and_then(|index| valid.get(index)).copied().unwrap_or_default();
        Some(shared.saturating_sub(self.terms.drift))
    }
}

/// Give guards back, all at once; what takes longer than `patience` goes on in the background.
pub(super) async fn give_back(guards: Vec<Guard>, patience: Duration) -> Vec<Result<(), Error>> {
    join_all(guards.into_iter().map(|guard| async move {
        timeout(patience, guard.release()).await.unwrap_or_else(|_| {
            let cause = format!("no answer within {patience:?}");
            Err(Error::Unknown { operation: "release", cause })
        })
    }))
    .await
}
