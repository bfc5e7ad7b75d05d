//! The `SET NX` lock: `SET key token NX PX lease`. It does not wait and is never renewed. For work that
//! may take longer than the lease, use [`Locks::lock`].

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

use crate::commands::setnx::SetNxAcquire;
use crate::config::clamp_lease;
use crate::connection::failure::Failure;
use crate::error::{Error, LostReason};
use crate::holding::armed::{Armed, Release};
use crate::locks::Locks;
use crate::name::Name;
use crate::tasks::reconcile::release_until;

/// A lock by `SET NX` with a fixed lease.
///
/// # On the wire
/// `SET key token NX PX lease`, with a new token for each acquire. A release deletes the key if its
/// value is that token. No message is published. Any key will do, but on a cluster only one that is
/// valid as the name of a [`Lock`](crate::Lock). After an acquire that was not answered,
/// `redisson_unlock_latch:{key}:<token>` exists for two minutes: because of it, a copy of that acquire
/// that arrives late does nothing.
///
/// # Cancellation
/// Every future may be dropped at any time. A command that is under way is finished in the
/// background, and what it acquired is released.
#[derive(Debug, Clone)]
pub struct SetNxLock {
    locks: Locks,
    name: Name,
    lease: Duration,
}

/// A held [`SetNxLock`]; dropping it releases it in the background.
#[must_use = "dropping the guard releases the lock"]
pub struct SetNxGuard(Armed<Held>);

#[derive(Clone)]
struct Held {
    locks: Locks,
    acquire: SetNxAcquire,
    since: Instant,
    /// Until when the lease lasts at least: counted from before the command was sent.
    ends: Instant,
}

impl Release for Held {
    fn locks(&self) -> &Locks {
        &self.locks
    }

    fn name(&self) -> &str {
        self.acquire.name.key()
    }

    /// Without an answer, the release is repeated in the background.
    async fn release(self) -> Result<(), Error> {
        self.count_end();
        match self.send_release().await {
            Ok(true) => Ok(()),
            Ok(false) => {
                let counters = &self.locks.shared().counters.setnx;
                counters.hold_lost(LostReason::Expired);
                Err(Error::Lost(LostReason::Expired))
            }
            Err(failure) => {
                if !matches!(failure, Failure::Rejected(_)) {
                    self.release_in_background();
                }
                Err(failure.into_error("release"))
            }
        }
    }
}

impl Held {
    /// `false`: the server says that this acquire does not hold the lock.
    async fn send_release(&self) -> Result<bool, Failure> {
        let connection = &self.locks.shared().connection;
        connection.setnx_release(&self.acquire).await
    }

    /// Repeats the release until it is answered, or until the lease has ended.
    fn release_in_background(self) {
        let cleanup = self.locks.shared().cleanup.clone();
        cleanup.spawn(async move {
            release_until(self.locks.shared(), self.name(), self.ends, || {
                self.send_release()
            })
            .await;
        });
    }

    /// After an acquire without an answer: makes sure that a late copy of it has no effect, and deletes
    /// the key that it may have set. Repeated until that is answered, or until no copy can arrive any
    /// more and a key that one has set has expired.
    fn end_in_background(self, lease: Duration) {
        let cleanup = self.locks.shared().cleanup.clone();
        cleanup.spawn(async move {
            let connection = &self.locks.shared().connection;
            let until = Instant::now() + lease.max(connection.generations_kept());
            release_until(self.locks.shared(), self.name(), until, || {
                connection.setnx_end(&self.acquire)
            })
            .await;
        });
    }

    fn count_end(&self) {
        let counters = &self.locks.shared().counters.setnx;
        counters.held.record(self.since.elapsed());
    }
}

impl Locks {
    /// The `SET NX` lock on this key, with a fixed lease (at least 1 ms). Sends nothing.
    pub fn setnx(&self, key: &str, lease: Duration) -> SetNxLock {
        SetNxLock {
            locks: self.clone(),
            name: Name::new(key),
            lease: clamp_lease(lease),
        }
    }
}

impl SetNxLock {
    /// Acquire the lock; `None` if it is held. Every acquire is an owner of its own: there is no
    /// re-entry.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when Redis does not answer; what it may have granted is released in the
    /// background, and a copy of the command that arrives late acquires nothing. [`Error::Rejected`]
    /// when it refuses the command; [`Error::Closed`]; on a cluster [`Error::InvalidName`].
    pub async fn try_acquire(&self) -> Result<Option<SetNxGuard>, Error> {
        let started = Instant::now();
        self.locks.ensure_running();
        let shared = self.locks.shared();
        let result = shared.cleanup.finish(attempt(self.clone())).await;
        shared
            .counters
            .setnx
            .acquired(&result, started.elapsed(), false);
        result
    }
}

async fn attempt(lock: SetNxLock) -> Result<Option<SetNxGuard>, Error> {
    let shared = lock.locks.shared().clone();
    shared.check_open()?;
    shared.connection.check_setnx(&lock.name)?;
    let since = Instant::now();
    let acquire = SetNxAcquire::new(lock.name, shared.token());
    let held = Held {
        locks: lock.locks,
        acquire,
        since,
        ends: since + lock.lease,
    };
    match shared
        .connection
        .setnx_acquire(&held.acquire, lock.lease)
        .await
    {
        Ok(true) => {
            shared.counters.setnx.holds.add();
            Ok(Some(SetNxGuard(Armed::new(held))))
        }
        Ok(false) => Ok(None),
        Err(failure) => {
            if matches!(failure, Failure::Unknown(_)) {
                held.end_in_background(lock.lease);
            }
            Err(failure.into_unavailable("acquire"))
        }
    }
}

impl SetNxGuard {
    /// Release the lock.
    ///
    /// # Cancellation
    /// Once polled, it is finished in the background even if the future is dropped.
    ///
    /// # Errors
    /// [`Error::Lost`] when the lease had ended: the key is gone or another owner's, and was not
    /// changed. [`Error::Unavailable`] or [`Error::Unknown`] when Redis was not reached or did not
    /// answer: the release is repeated in the background until the lease has ended. [`Error::Rejected`]
    /// when Redis refused the command or the login; after a refused login the release is repeated as well.
    pub async fn release(self) -> Result<(), Error> {
        self.0.release().await
    }

    /// Keep the key until its lease ends: for work that must not be done again before then.
    pub fn forget(mut self) {
        self.0.disarm();
        self.0.held.count_end();
    }

    /// How long from now the lock is held for certain, by this machine's monotonic clock.
    pub fn valid_for(&self) -> Duration {
        self.0.held.ends.saturating_duration_since(Instant::now())
    }
}

impl fmt::Debug for SetNxGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SetNxGuard")
            .field("key", &self.0.held.acquire.name)
            .finish_non_exhaustive()
    }
}
