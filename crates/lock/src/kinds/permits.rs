//! Acquired permits of a semaphore: released once, even if replies are lost.

use std::fmt;
use std::sync::Arc;

use tokio::time::Instant;

use crate::cleanup::armed::{Armed, Release};
use crate::cleanup::queue::CleanupQueue;
use crate::cleanup::reconcile::{Attempt, release_until};
use crate::commands::semaphore::{
    ACQUIRE_RECORD_TTL, RELEASE_RECORD_TTL, ReleaseIf, SemaphoreName,
};
use crate::connection::failure::Failure;
use crate::error::{Error, LostReason};
use crate::locks::Locks;

/// Acquired permits of a [`Semaphore`](crate::Semaphore).
///
/// [`release`](Self::release) releases them and reports the outcome. Dropping them releases them in
/// the background, without blocking, and also outside a runtime.
#[must_use = "dropping the permits releases them"]
pub struct Permits(Armed<Held>);

#[derive(Clone)]
pub(crate) struct Held {
    pub(crate) locks: Locks,
    pub(crate) name: SemaphoreName,
    /// Identifies the record of the acquire.
    pub(crate) token: Arc<str>,
    pub(crate) permits: u32,
    since: Instant,
    /// Until when the record of the acquire exists for certain.
    recorded_until: Instant,
}

impl Held {
    /// The permits of an acquire that is about to be sent.
    pub(crate) fn requested(locks: Locks, name: SemaphoreName, permits: u32) -> Self {
        let (token, since) = (locks.shared().token().into(), Instant::now());
        // A tenth less, as an allowance for clocks that run at different rates.
        let recorded_until = since + ACQUIRE_RECORD_TTL - ACQUIRE_RECORD_TTL / 10;
        Self { locks, name, token, permits, since, recorded_until }
    }
}

impl Release for Held {
    fn cleanup(&self) -> &CleanupQueue {
        &self.locks.shared().cleanup
    }

    fn name(&self) -> &str {
        self.name.key()
    }

    async fn release(self) -> Result<(), Error> {
        release(self).await
    }
}

impl Permits {
    /// The server has confirmed the acquire.
    pub(crate) fn acquired(held: Held) -> Self {
        let none = held.permits == 0;
        held.locks.shared().counters.semaphore.hold_started();
        let mut permits = Armed::new(held);
        if none {
            permits.end();
        }
        Self(permits)
    }

    /// The number of permits.
    pub fn count(&self) -> u32 {
        self.0.permits
    }

    /// Release them and notify waiters.
    ///
    /// # Cancellation
    /// Once polled, it is finished in the background even if the future is dropped.
    ///
    /// # Errors
    /// [`Error::Lost`] when the server does not know of them: the semaphore was deleted or its
    /// data lost, and nothing was changed. [`Error::Unavailable`] or [`Error::Unknown`] when Redis
    /// was not reached or did not answer: it is repeated in the background, until nine minutes after
    /// the acquire or, if that is later, for half a minute.
    pub async fn release(self) -> Result<(), Error> {
        self.0.release().await
    }

    /// Split so many of them off, to be released by themselves; `None` if there are fewer. Sends
    /// nothing. What is split off is released like permits that were held for longer than nine
    /// minutes: see [`Semaphore`](crate::Semaphore).
    pub fn split(&mut self, permits: u32) -> Option<Self> {
        let left = self.0.permits.checked_sub(permits)?;
        let mut part = Held::requested(self.0.locks.clone(), self.0.name.clone(), permits);
        part.recorded_until = part.since;
        self.0.permits = left;
        if left == 0 {
            self.0.end();
        }
        Some(Self::acquired(part))
    }

    /// Keep them acquired without a guard: for permits that another process releases, with
    /// [`Semaphore::add_permits`](crate::Semaphore::add_permits).
    pub fn forget(mut self) {
        self.0.end();
    }
}

impl Armed<Held> {
    /// Nothing is held here any more.
    fn end(&mut self) {
        self.disarm();
        self.locks.shared().counters.semaphore.hold_ended(self.since.elapsed());
    }
}

impl fmt::Debug for Permits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permits")
            .field("name", &self.0.name)
            .field("count", &self.0.permits)
            .finish_non_exhaustive()
    }
}

async fn release(held: Held) -> Result<(), Error> {
    let shared = held.locks.shared().clone();
    shared.counters.semaphore.hold_ended(held.since.elapsed());
    // Chosen once: the record of a first sending with one condition does not bind the other.
    let now = Instant::now();
    let recorded = now < held.recorded_until;
    let condition = if recorded { ReleaseIf::Acquired } else { ReleaseIf::Exists };
    match send_release(&held, condition).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::Lost(LostReason::Expired)),
        Err(failure) => {
            if !matches!(failure, Failure::Rejected(_)) {
                // Without the record of the acquire, well before that of the release can expire.
                let until =
                    if recorded { held.recorded_until } else { now + RELEASE_RECORD_TTL / 2 };
                shared.cleanup.spawn(reconcile(held, condition, until));
            }
            Err(failure.into_error("release"))
        }
    }
}

/// Release what an acquire without an answer may have acquired, and make sure that it acquires
/// nothing later.
pub(crate) async fn reconcile_acquire(held: Held) {
    let until = held.recorded_until;
    reconcile(held, ReleaseIf::Acquired, until).await;
}

/// Repeat the release until it is answered.
async fn reconcile(held: Held, condition: ReleaseIf, until: Instant) {
    let held = &held;
    let (shared, key) = (held.locks.shared(), held.name.key());
    let answered =
        release_until(shared, key, until, 1, async || match send_release(held, condition).await {
            Ok(_) => Attempt::Done,
            Err(Failure::Rejected(cause)) => {
                tracing::warn!(semaphore = ?held.name, error = %cause, "release refused");
                Attempt::Done
            }
            Err(_) => Attempt::Failed,
        });
    if !answered.await {
        tracing::warn!(semaphore = ?held.name, permits = held.permits, "permits may stay acquired");
    }
}

async fn send_release(held: &Held, condition: ReleaseIf) -> Result<bool, Failure> {
    let connection = &held.locks.shared().connection;
    connection.semaphore_release(&held.name, &held.token, held.permits.into(), condition).await
}
