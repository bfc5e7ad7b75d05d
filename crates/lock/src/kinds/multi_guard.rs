//! The multi guard: several guards that count as one as long as a quorum of them is held. All of them
//! for a multi-lock, a majority of them for a majority lock.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use crate::error::{Error, Lost, LostReason};
use crate::holding::guard::{Guard, unless_lost};
use crate::kinds::quorum::{Quorum, QuorumRule, Status};

/// Several locks held as one.
///
/// [`release`](Self::release) releases all of them and reports the outcome. Dropping the guard
/// releases them in the background, without blocking, and also outside a runtime.
#[must_use = "dropping the guard releases the locks"]
#[derive(Debug)]
pub struct MultiGuard {
    quorum: Arc<Quorum>,
}

impl MultiGuard {
    /// Of guards with the numbers of their members.
    pub(crate) fn new(guards: impl IntoIterator<Item = (usize, Guard)>, rule: QuorumRule) -> Self {
        Self {
            quorum: Arc::new(Quorum::new(guards, rule)),
        }
    }

    pub(crate) fn quorum(&self) -> &Arc<Quorum> {
        &self.quorum
    }

    /// Release all of the locks, on all servers at once.
    ///
    /// # Cancellation
    /// Once polled, it is finished in the background even if the future is dropped.
    ///
    /// # Errors
    /// [`Error::Lost`] when [`lost`](Self::lost) has ended before. Else the first error, when fewer
    /// locks than had to be held were still held and are known to be released: [`Error::Lost`],
    /// [`Error::Unavailable`] or [`Error::Unknown`], each as for
    /// [`Guard::release`]. Every other lock has been released nevertheless; where a server was not
    /// reached, the release is repeated in the background.
    pub async fn release(self) -> Result<(), Error> {
        let (guards, lost) = self.quorum.take();
        let QuorumRule {
            needed,
            release_timeout,
            ..
        } = self.quorum.rule;
        let mut released = 0;
        let mut first = lost.map(Error::Lost);
        for result in release_all(guards, release_timeout).await {
            match result {
                Ok(()) => released += 1,
                Err(error) => first = first.or(Some(error)),
            }
        }
        match first {
            Some(error) if lost.is_some() || released < needed => Err(error),
            _ => Ok(()),
        }
    }

    /// Wait until the locks are lost: fewer of them are held than must be. Never ends if they are
    /// released in time. The future is independent of the guard.
    pub fn lost(&self) -> impl Future<Output = LostReason> + Send + use<> {
        let quorum = self.quorum.clone();
        async move { quorum.lost().await }
    }

    /// Run `work` as long as the locks are held: its output, or [`Lost`] as soon as they are
    /// [lost](Self::lost); `work` is dropped then. The locks are not released.
    ///
    /// # Cancellation
    /// Dropping the future drops `work`.
    ///
    /// # Errors
    /// [`Lost`].
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Lost> {
        unless_lost(self.lost(), work).await
    }

    /// How long from now the locks are held for certain, by this machine's monotonic clock:
    /// all of them for a multi-lock, a majority of them (less the drift of clocks) for a majority
    /// lock. Each is counted from before its last confirmed command was sent. Zero once lost.
    pub fn valid_for(&self) -> Duration {
        match self.quorum.status() {
            Status::Held(valid) => valid,
            Status::Lost(_) | Status::Released => Duration::ZERO,
        }
    }

    /// How many of the locks are held now, as far as this process knows.
    pub fn held(&self) -> usize {
        self.quorum.held()
    }
}

impl Drop for MultiGuard {
    fn drop(&mut self) {
        // Not left to the last reference: a future of `lost()` may live longer.
        drop(self.quorum.take());
    }
}

/// Release guards, all at once; what takes longer than `timeout` goes on in the background.
pub(crate) async fn release_all(
    guards: impl IntoIterator<Item = Guard>,
    timeout: Duration,
) -> Vec<Result<(), Error>> {
    join_all(guards.into_iter().map(|guard| async move {
        tokio::time::timeout(timeout, guard.release())
            .await
            .unwrap_or_else(|_| {
                let cause = format!("no answer within {timeout:?}").into();
                Err(Error::Unknown {
                    operation: "release",
                    cause,
                })
            })
    }))
    .await
}
