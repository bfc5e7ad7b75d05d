//! The simple lock: `SET key token NX PX lease`, taken or not, never renewed. Whoever needs the
//! work to outlive the lease wants the reentrant lock instead.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::conn::Failure;
use super::locks::Locks;
use super::{Error, LostReason};

/// A lock by `SET NX` with a fixed lease.
#[derive(Debug, Clone)]
pub struct SetNxLock {
    locks: Locks,
    key: Arc<str>,
    lease: Duration,
}

/// A simple lock that is held; dropping it gives it back in the background.
#[must_use = "dropping the guard gives the lock back"]
pub struct SetNxGuard {
    held: Held,
    /// Whether dropping has something to give back.
    armed: bool,
}

/// What it takes to give the key back.
#[derive(Clone)]
struct Held {
    locks: Locks,
    key: Arc<str>,
    token: Arc<str>,
    /// When it was asked for.
    since: Instant,
    /// When the lease has ended for certain.
    ends: Instant,
}

impl SetNxLock {
    pub(super) fn new(locks: Locks, key: &str, lease: Duration) -> Self {
        Self { locks, key: key.into(), lease }
    }

    /// Take the lock; `None` if somebody has it. Every acquire is an owner of its own: there is no
    /// re-entry.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when Redis does not answer; whatever it took after all is given back
    /// in the background. [`Error::Rejected`] when it refuses; [`Error::Closed`].
    pub async fn try_acquire(&self) -> Result<Option<SetNxGuard>, Error> {
        let began = Instant::now();
        let shared = self.locks.shared();
        let end = shared.janitor.finish(attempt(self.clone())).await;
        shared.counters.of_setnx().acquired(&end, began.elapsed(), false);
        end
    }
}

async fn attempt(lock: SetNxLock) -> Result<Option<SetNxGuard>, Error> {
    let shared = lock.locks.shared().clone();
    shared.open()?;
    let token: Arc<str> = shared.token().into();
    let sent = Instant::now();
    let (since, ends) = (sent, sent + lock.lease);
    let held = Held { locks: lock.locks, key: lock.key, token, since, ends };
    match shared.connection.set_nx(&held.key, &held.token, lock.lease).await {
        Ok(true) => {
            shared.counters.of_setnx().begun();
            Ok(Some(SetNxGuard { held, armed: true }))
        }
        Ok(false) => Ok(None),
        Err(failure) => {
            if matches!(failure, Failure::Unknown(_)) {
                let until = Instant::now() + lock.lease;
                shared.janitor.run(settle(Held { ends: until, ..held }));
            }
            Err(failure.unavailable("acquire"))
        }
    }
}

impl SetNxGuard {
    /// Give the lock back. Once begun, it is finished even if the future is dropped.
    ///
    /// # Errors
    /// [`Error::NotHeld`] when the lease had ended: the key is gone or somebody else's, and was
    /// left alone. [`Error::Unavailable`] or [`Error::Unknown`] when Redis could not be told or did
    /// not answer: the release is repeated in the background until the lease has ended.
    pub async fn release(mut self) -> Result<(), Error> {
        self.armed = false;
        let held = self.held.clone();
        drop(self);
        let janitor = held.locks.shared().janitor.clone();
        janitor.finish(release(held)).await
    }

    /// For how long from now the lock is held for certain.
    pub fn valid_for(&self) -> Duration {
        self.held.ends.saturating_duration_since(Instant::now())
    }
}

impl fmt::Debug for SetNxGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SetNxGuard").field("key", &self.held.key).finish_non_exhaustive()
    }
}

impl Drop for SetNxGuard {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        let held = self.held.clone();
        self.held.locks.shared().janitor.run(async move {
            let key = held.key.clone();
            if let Err(error) = release(held).await {
                tracing::debug!(%key, fault = %error, "dropped lock not released at once");
            }
        });
    }
}

async fn release(held: Held) -> Result<(), Error> {
    let shared = held.locks.shared().clone();
    let counters = shared.counters.of_setnx();
    counters.ended(held.since.elapsed());
    match shared.connection.setnx_release(&held.key, &held.token).await {
        Ok(true) => Ok(()),
        Ok(false) => {
            counters.lost(LostReason::Expired);
            Err(Error::NotHeld)
        }
        Err(failure) => {
            if !matches!(failure, Failure::Rejected(_)) {
                shared.janitor.run(settle(held));
            }
            Err(failure.outcome("release"))
        }
    }
}

/// Repeat the release until Redis has answered twice that the key is not ours, or until the lease
/// must have ended.
async fn settle(held: Held) {
    let mut gone_before = false;
    let mut pause = Duration::from_millis(25);
    let shared = held.locks.shared();
    while Instant::now() < held.ends {
        {
            let _permit = shared.cleanup_permit().await;
            match shared.connection.setnx_release(&held.key, &held.token).await {
                Ok(true) | Err(Failure::Rejected(_)) => return,
                Ok(false) if gone_before => return,
                Ok(false) => gone_before = true,
                Err(_) => {}
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}
