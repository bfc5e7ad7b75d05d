//! Acquired permits of a semaphore: released once, even if replies are lost.

use std::fmt;
use std::sync::Arc;

use tokio::time::Instant;

use crate::cleanup::reconcile::{Attempt, release_until};
use crate::commands::semaphore::{
    ACQUIRE_RECORD_TTL, RELEASE_RECORD_TTL, ReleaseIf, SemaphoreName,
};
use crate::connection::failure::Failure;
use crate::error::Error;
use crate::locks::Locks;

/// Acquired permits of a [`Semaphore`](crate::Semaphore).
///
/// [`release`](Self::release) releases them and reports the outcome. Dropping them releases them in
/// the background, without blocking, and also outside a runtime.
#[must_use = "dropping the permits releases them"]
pub struct Permits {
    held: Held,
    /// Whether dropping has to release.
    armed: bool,
}

#[derive(Clone)]
struct Held {
    locks: Locks,
    name: SemaphoreName,
    /// Identifies the record of the acquire.
    token: Arc<str>,
    permits: u32,
    /// Until when the record of the acquire exists for certain.
    recorded_until: Instant,
}

impl Permits {
    /// The permits of an acquire that is about to be sent.
    pub(crate) fn requested(locks: Locks, name: SemaphoreName, permits: u32) -> Self {
        let token = locks.shared().token().into();
        // A tenth less, as an allowance for clocks that run at different rates.
        let recorded_until = Instant::now() + ACQUIRE_RECORD_TTL - ACQUIRE_RECORD_TTL / 10;
        Self { held: Held { locks, name, token, permits, recorded_until }, armed: false }
    }

    /// The server has confirmed the acquire.
    pub(crate) fn acquired(mut self) -> Self {
        self.armed = self.held.permits > 0;
        self
    }

    pub(crate) fn name(&self) -> &SemaphoreName {
        &self.held.name
    }

    pub(crate) fn token(&self) -> &str {
        &self.held.token
    }

    /// The number of permits.
    pub fn count(&self) -> u32 {
        self.held.permits
    }

    /// Release them and notify waiters.
    ///
    /// # Cancellation
    /// Once polled, it is finished in the background even if the future is dropped.
    ///
    /// # Errors
    /// [`Error::NotHeld`] when the server does not know of them: the semaphore was deleted or its
    /// data lost, and nothing was changed. [`Error::Unavailable`] or [`Error::Unknown`] when Redis
    /// was not reached or did not answer: it is repeated in the background, until nine minutes after
    /// the acquire or, if that is later, for half a minute.
    pub async fn release(mut self) -> Result<(), Error> {
        if !std::mem::take(&mut self.armed) {
            return Ok(());
        }
        let held = self.held.clone();
        drop(self);
        let cleanup = held.locks.shared().cleanup.clone();
        cleanup.finish(release(held)).await
    }

    /// Keep them acquired without a guard: for permits that another process releases, with
    /// [`Semaphore::add_permits`](crate::Semaphore::add_permits).
    pub fn forget(mut self) {
        self.armed = false;
    }
}

impl fmt::Debug for Permits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permits")
            .field("name", &self.held.name)
            .field("count", &self.held.permits)
            .finish_non_exhaustive()
    }
}

impl Drop for Permits {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        let held = self.held.clone();
        self.held.locks.shared().cleanup.spawn(async move {
            let name = held.name.clone();
            if let Err(error) = release(held).await {
                tracing::debug!(semaphore = ?name, %error, "dropped permits not released at once");
            }
        });
    }
}

async fn release(held: Held) -> Result<(), Error> {
    let shared = held.locks.shared().clone();
    // Chosen once: the record of a first sending with one condition does not bind the other.
    let now = Instant::now();
    let recorded = now < held.recorded_until;
    let condition = if recorded { ReleaseIf::Acquired } else { ReleaseIf::Exists };
    match send_release(&held, condition).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::NotHeld),
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
pub(crate) async fn reconcile_acquire(permits: Permits) {
    let until = permits.held.recorded_until;
    reconcile(permits.held.clone(), ReleaseIf::Acquired, until).await;
}

/// Repeat the release until it is answered.
async fn reconcile(held: Held, condition: ReleaseIf, until: Instant) {
    let held = &held;
    let (shared, key) = (held.locks.shared(), held.name.key());
    let answered =
        release_until(shared, key, until, 1, async || match send_release(held, condition).await {
            Ok(_) => Attempt::Done,
            Err(Failure::Rejected(cause)) => {
                tracing::warn!(semaphore = ?held.name, error = cause, "release refused");
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
