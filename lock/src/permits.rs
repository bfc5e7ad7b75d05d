//! What is held of a semaphore: giving it back once, whatever becomes of the replies.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Error;
use super::conn::Failure;
use super::locks::Locks;
use super::semaphore_calls::{GIVEN_FOR, Give, SemaphoreName, TAKEN_FOR};

/// Permits of a [`Semaphore`](super::Semaphore), to be given back.
///
/// [`release`](Self::release) gives them back and says whether that worked. Dropping them gives them
/// back in the background, without blocking, and also where no runtime is.
#[must_use = "dropping the permits gives them back"]
pub struct Permits {
    held: Held,
    /// Whether dropping has something to give back.
    armed: bool,
}

#[derive(Clone)]
struct Held {
    locks: Locks,
    name: SemaphoreName,
    /// Names the record of the acquire.
    token: Arc<str>,
    permits: u32,
    /// Until when the record of the acquire exists for certain.
    recorded_until: Instant,
}

impl Permits {
    /// What an acquire that is sent from now on may take.
    pub(super) fn expected(locks: Locks, name: SemaphoreName, permits: u32) -> Self {
        let token = locks.shared().token().into();
        // A tenth less, so that clocks that run differently make no difference.
        let recorded_until = Instant::now() + TAKEN_FOR - TAKEN_FOR / 10;
        Self { held: Held { locks, name, token, permits, recorded_until }, armed: false }
    }

    /// The server has said that they are taken.
    pub(super) fn confirmed(mut self) -> Self {
        self.armed = self.held.permits > 0;
        self
    }

    pub(super) fn name(&self) -> &SemaphoreName {
        &self.held.name
    }

    pub(super) fn token(&self) -> &str {
        &self.held.token
    }

    /// How many they are.
    pub fn count(&self) -> u32 {
        self.held.permits
    }

    /// Give them back, and tell waiters. Once begun, it is finished even if the future is dropped.
    ///
    /// # Errors
    /// [`Error::NotHeld`] when the server does not know of them: the semaphore was deleted or its
    /// data lost, and nothing was changed. [`Error::Unavailable`] or [`Error::Unknown`] when Redis
    /// could not be told or did not answer: it is repeated in the background, until nine minutes
    /// after the acquire or, if that is later, for half a minute.
    pub async fn release(mut self) -> Result<(), Error> {
        if !std::mem::take(&mut self.armed) {
            return Ok(());
        }
        let held = self.held.clone();
        drop(self);
        let janitor = held.locks.shared().janitor.clone();
        janitor.finish(release(held)).await
    }

    /// Keep them taken without a guard: for permits that another process gives back, with
    /// [`Semaphore::add_permits`](super::Semaphore::add_permits).
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
        self.held.locks.shared().janitor.run(async move {
            let name = held.name.clone();
            if let Err(error) = release(held).await {
                tracing::debug!(semaphore = ?name, fault = %error, "dropped permits not given back at once");
            }
        });
    }
}

async fn release(held: Held) -> Result<(), Error> {
    let shared = held.locks.shared().clone();
    // Once chosen, it stays: the record of a first sending in one way does not bind the other.
    let now = Instant::now();
    let condition = if now < held.recorded_until { Give::Taken } else { Give::Exists };
    let reply = give(&held, condition).await;
    match reply {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::NotHeld),
        Err(failure) => {
            if !matches!(failure, Failure::Rejected(_)) {
                let until = match condition {
                    Give::Taken => held.recorded_until,
                    // Long before the record of a sending that was carried out can have expired.
                    Give::Exists | Give::Always => now + GIVEN_FOR / 2,
                };
                shared.janitor.run(settle(held, condition, until));
            }
            Err(failure.outcome("release"))
        }
    }
}

/// Give back what an acquire without an answer may have taken, and see that it takes nothing later.
pub(super) async fn undo(taken: Permits) {
    let until = taken.held.recorded_until;
    settle(taken.held.clone(), Give::Taken, until).await;
}

/// Repeat giving until it is answered.
async fn settle(held: Held, condition: Give, until: Instant) {
    let mut pause = Duration::from_millis(25);
    while Instant::now() < until {
        {
            let _permit = held.locks.shared().cleanup_permit().await;
            match give(&held, condition).await {
                Ok(_) => return,
                Err(Failure::Rejected(cause)) => {
                    tracing::warn!(semaphore = ?held.name, fault = cause, "giving back was refused");
                    return;
                }
                Err(_) => {}
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
    tracing::warn!(semaphore = ?held.name, permits = held.permits, "permits may stay taken");
}

async fn give(held: &Held, condition: Give) -> Result<bool, Failure> {
    let connection = &held.locks.shared().connection;
    connection.semaphore_give(&held.name, &held.token, held.permits.into(), condition).await
}
