//! The multi guard: several guards that are held as one, and lost as soon as one of them is.

use std::future::Future;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;

use crate::error::{Error, Lost, LostReason};
use crate::holding::guard::{Guard, unless_lost};

/// Several locks held as one.
///
/// [`release`](Self::release) releases all of them and reports the outcome. Dropping the guard
/// releases them in the background, without blocking, and also outside a runtime.
#[must_use = "dropping the guard releases the locks"]
#[derive(Debug)]
pub struct MultiGuard {
    guards: Vec<Guard>,
}

impl MultiGuard {
    pub(crate) fn new(guards: Vec<Guard>) -> Self {
        Self { guards }
    }

    /// Release all of the locks, on all servers at once.
    ///
    /// # Cancellation
    /// Once polled, it is finished in the background even if the future is dropped.
    ///
    /// # Errors
    /// The first error of [`Guard::release`]. The other locks are released all the same; where a server
    /// was not reached, the release is repeated in the background.
    pub async fn release(self) -> Result<(), Error> {
        let released = join_all(self.guards.into_iter().map(Guard::release)).await;
        released.into_iter().collect()
    }

    /// Wait until one of the locks is lost. Never ends if they are released in time. The future is
    /// independent of the guard.
    pub fn lost(&self) -> impl Future<Output = LostReason> + Send + use<> {
        let mut losses: FuturesUnordered<_> = self.guards.iter().map(Guard::lost).collect();
        async move {
            match losses.next().await {
                Some(reason) => reason,
                None => std::future::pending().await,
            }
        }
    }

    /// As [`Guard::run`]: the output of `work`, or [`Lost`] as soon as one of the locks is
    /// [lost](Self::lost).
    ///
    /// # Cancellation
    /// Dropping the future drops `work`.
    ///
    /// # Errors
    /// [`Lost`].
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Lost> {
        let output = unless_lost(self.lost(), work).await?;
        let mut lost = self.guards.iter().map(|guard| guard.hold().lost_reason());
        match lost.find_map(|reason| reason) {
            Some(reason) => Err(Lost(reason)),
            None => Ok(output),
        }
    }

    /// How long from now all of the locks are held for certain, by this machine's monotonic clock. Each is
    /// counted from before its last confirmed command was sent. Zero once one is lost.
    pub fn valid_for(&self) -> Duration {
        let each = self.guards.iter().map(Guard::valid_for);
        each.min().unwrap_or_default()
    }
}
