//! The leased semaphore: its permits have ids and leases, so that those of a crashed holder are freed.
//! Modelled on Redisson's `RPermitExpirableSemaphore`.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

use crate::cleanup::reconcile::{Attempt, release_until};
use crate::clock::BootInstant;
use crate::commands::leased_semaphore::PermitIds;
use crate::commands::semaphore::{ReleaseIf, SemaphoreName};
use crate::config::clamp_lease;
use crate::connection::failure::Failure;
use crate::error::{Error, LostReason};
use crate::locks::Locks;
use crate::waiting::deadline::deadline_after;
use crate::waiting::permit_queue::{Try, wait};

/// A semaphore whose permits expire, shared with Redisson's clients.
///
/// The ids make every command count once, however often it is sent, and a permit that is not
/// released is free again after its lease: none can be lost for longer, and none released twice. As
/// with every lease, a holder that outlives it is one too many: check
/// [`valid_for`](LeasedPermit::valid_for), and [`extend`](LeasedPermit::extend) it in time; the
/// watchdog does not.
///
/// Leases run on the server's clock (Redis 5 or newer). Redisson's clients go by their own: one whose
/// clock is fast frees permits early, also ours.
///
/// [`LockConfig::replicas`](crate::LockConfig::replicas) has no effect here: a failover may lose a
/// permit, and then there is one holder too many until its work is done.
///
/// # On the wire
/// As Redisson 3.17 to 4.7: a string with the number of free permits, as for
/// [`Semaphore`](crate::Semaphore), and `{name}:timeout`, a sorted set of the 16-byte ids of the
/// acquired permits by the time at which each expires. The next command of any client frees what has
/// expired.
///
/// # Cancellation
/// Every future may be dropped at any time. An acquire that is under way is finished in the background,
/// and what it acquired is released. Of a call that sets or adds permits, a command that was sent may
/// or may not be executed.
///
/// ```no_run
/// # async fn example(locks: redisson_lock::Locks) -> Result<(), redisson_lock::Error> {
/// use std::time::Duration;
///
/// let semaphore = locks.leased_semaphore("payments", Duration::from_secs(30))?;
/// semaphore.try_set_permits(20).await?;
/// let permit = semaphore.acquire().await?;
/// // ... no more than twenty at once, even if some of them crashed ...
/// permit.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LeasedSemaphore {
    locks: Locks,
    name: SemaphoreName,
    lease: Duration,
}

/// An acquired permit of a [`LeasedSemaphore`], or several that were acquired together and have one
/// lease; dropping it releases them in the background.
#[must_use = "dropping the permit releases it"]
pub struct LeasedPermit {
    held: Held,
    /// Whether dropping has to release.
    armed: bool,
}

#[derive(Clone)]
struct Held {
    locks: Locks,
    name: SemaphoreName,
    ids: PermitIds,
    /// Until when the server keeps it at least.
    ends: BootInstant,
}

impl Locks {
    /// The semaphore of this name whose permits last for `lease` (at least 1 ms). Sends nothing.
    ///
    /// # Errors
    /// [`Error::InvalidName`] as for [`reentrant`](Self::reentrant).
    pub fn leased_semaphore(&self, name: &str, lease: Duration) -> Result<LeasedSemaphore, Error> {
        let (name, lease) = (SemaphoreName::new(name)?, clamp_lease(lease));
        Ok(LeasedSemaphore { locks: self.clone(), name, lease })
    }
}

impl LeasedSemaphore {
    /// Create the semaphore with this number of permits; `false`, and nothing changes, if it exists.
    ///
    /// # Errors
    /// [`Error::Unavailable`] or [`Error::Rejected`] when Redis cannot be reached or refuses;
    /// [`Error::Unknown`] when it may have been done: call it again, or check
    /// [`available`](Self::available).
    pub async fn try_set_permits(&self, permits: u32) -> Result<bool, Error> {
        let reply = self.locks.shared().connection.semaphore_set(&self.name, permits).await;
        reply.map_err(|failure| failure.into_error("set permits"))
    }

    /// Add permits, or remove some if negative: the number of free ones may then be below zero until
    /// enough are released. Creates the semaphore if it does not exist.
    ///
    /// # Errors
    /// As [`try_set_permits`](Self::try_set_permits).
    pub async fn add_permits(&self, permits: i64) -> Result<(), Error> {
        let shared = self.locks.shared();
        let (connection, token) = (&shared.connection, shared.token());
        let reply =
            connection.semaphore_release(&self.name, &token, permits, ReleaseIf::Always).await;
        reply.map(drop).map_err(|failure| failure.into_error("add permits"))
    }

    /// How many permits are free, those included that have expired.
    ///
    /// # Errors
    /// [`Error::Unavailable`] or [`Error::Rejected`].
    pub async fn available(&self) -> Result<i64, Error> {
        let reply = self.locks.shared().connection.permits_available(&self.name).await;
        reply.map_err(|failure| failure.into_unavailable("available"))
    }

    /// Acquire a permit; `None` if none is free or there is no semaphore. One command, limited by the
    /// command timeout.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when Redis does not answer; what it may have granted is released in
    /// the background. [`Error::Rejected`] when it refuses; [`Error::Closed`].
    pub async fn try_acquire(&self) -> Result<Option<LeasedPermit>, Error> {
        self.try_acquire_many(1).await
    }

    /// Acquire this number of permits together, or none and `None` if fewer are free or there is no
    /// semaphore. One command, limited by the command timeout, whose work on the server grows with the
    /// number; for 0 permits, none.
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire).
    pub async fn try_acquire_many(&self, permits: u32) -> Result<Option<LeasedPermit>, Error> {
        match self.attempt(permits).await? {
            Try::Acquired(permit) => Ok(Some(permit)),
            Try::NotFree(_) => Ok(None),
        }
    }

    /// Acquire a permit, waiting as long as it takes; also for the semaphore to be created.
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire) but for [`Error::Unavailable`]: while Redis does not answer,
    /// it goes on trying.
    pub async fn acquire(&self) -> Result<LeasedPermit, Error> {
        self.acquire_many(1).await
    }

    /// Acquire this number of permits together, waiting as long as it takes. The waiters of one process
    /// are served in order, but one that could not be served for a third of the configured lease lets
    /// the others pass: it may ask for more permits than there are.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_many(&self, permits: u32) -> Result<LeasedPermit, Error> {
        loop {
            if let Some(permit) = self.wait(permits, None).await? {
                return Ok(permit);
            }
        }
    }

    /// Acquire a permit, waiting no longer than `limit`; `None` when it was not acquired by then: because
    /// none was free, or Redis did not answer. With a limit of zero this is
    /// [`try_acquire`](Self::try_acquire).
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire) but for [`Error::Unavailable`]: while Redis does not answer,
    /// it goes on trying.
    pub async fn acquire_within(&self, limit: Duration) -> Result<Option<LeasedPermit>, Error> {
        self.acquire_many_within(1, limit).await
    }

    /// Acquire this number of permits together, waiting as [`acquire_many`](Self::acquire_many) does but
    /// no longer than `limit`; `None` when they were not acquired by then. With a limit of zero this is
    /// [`try_acquire_many`](Self::try_acquire_many).
    ///
    /// # Errors
    /// As [`acquire_within`](Self::acquire_within).
    pub async fn acquire_many_within(
        &self,
        permits: u32,
        limit: Duration,
    ) -> Result<Option<LeasedPermit>, Error> {
        if limit.is_zero() {
            return self.try_acquire_many(permits).await;
        }
        self.wait(permits, deadline_after(limit)).await
    }

    async fn wait(
        &self,
        permits: u32,
        deadline: Option<Instant>,
    ) -> Result<Option<LeasedPermit>, Error> {
        let (shared, channel) = (self.locks.shared(), self.name.channel());
        wait(shared, channel, deadline, || self.attempt(permits)).await
    }

    /// One try, finished in the background if the caller's future is dropped.
    async fn attempt(&self, permits: u32) -> Result<Try<LeasedPermit>, Error> {
        self.locks.shared().cleanup.finish(attempt(self.clone(), permits)).await
    }
}

impl fmt::Debug for LeasedSemaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeasedSemaphore")
            .field("name", &self.name)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

/// Send one acquire command and apply its reply.
async fn attempt(semaphore: LeasedSemaphore, permits: u32) -> Result<Try<LeasedPermit>, Error> {
    let LeasedSemaphore { locks, name, lease } = semaphore;
    let shared = locks.shared().clone();
    shared.check_open()?;
    let (ids, sent) = (PermitIds::new(permits), BootInstant::now());
    let held = Held { locks, name, ids, ends: sent + lease };
    if permits == 0 {
        return Ok(Try::Acquired(LeasedPermit { held, armed: false }));
    }
    let reply = shared.connection.permit_acquire(&held.name, ids, lease).await;
    let failure = match reply {
        Ok(None) if !held.ends.left().is_zero() => {
            return Ok(Try::Acquired(LeasedPermit { held, armed: true }));
        }
        // This future was not polled for so long that the lease is over before it began.
        Ok(None) => Failure::Unknown("the answer was read after the lease had ended".to_owned()),
        Ok(Some(free_in)) => {
            return Ok(Try::NotFree(u64::try_from(free_in).ok().map(Duration::from_millis)));
        }
        Err(failure) => failure,
    };
    if matches!(failure, Failure::Unknown(_)) {
        shared.cleanup.spawn(reconcile(Held { ends: BootInstant::now() + lease, ..held }));
    }
    Err(failure.into_unavailable("acquire"))
}

impl LeasedPermit {
    /// Release the permit, or all of them, and notify waiters. One command.
    ///
    /// # Cancellation
    /// Once polled, it is finished in the background even if the future is dropped.
    ///
    /// # Errors
    /// [`Error::Lost`] when its lease had ended, by the server's clock: another holder may have had it
    /// since. [`Error::Unavailable`] or [`Error::Unknown`] when Redis was not reached or did not
    /// answer: the release is repeated in the background until the lease has ended.
    pub async fn release(mut self) -> Result<(), Error> {
        if !std::mem::take(&mut self.armed) {
            return Ok(());
        }
        let held = self.held.clone();
        drop(self);
        let cleanup = held.locks.shared().cleanup.clone();
        cleanup.finish(release(held)).await
    }

    /// Set its lease (at least 1 ms), counted from now; that of all permits or of none. One command.
    ///
    /// # Cancellation
    /// When the future is dropped, the lease may or may not have been set:
    /// [`valid_for`](Self::valid_for) then tells the shorter of both.
    ///
    /// # Errors
    /// [`Error::Lost`] when its lease has ended. [`Error::Unavailable`] or [`Error::Unknown`] when
    /// Redis was not reached or did not answer: it may or may not be extended, and
    /// [`valid_for`](Self::valid_for) tells what is certain.
    pub async fn extend(&mut self, lease: Duration) -> Result<(), Error> {
        let lease = clamp_lease(lease);
        let sent = BootInstant::now();
        if self.count() == 0 {
            self.held.ends = sent + lease;
            return Ok(());
        }
        // Whether or not the command is answered, a shorter lease may have taken effect.
        if lease < self.valid_for() {
            self.held.ends = sent + lease;
        }
        let connection = &self.held.locks.shared().connection;
        match connection.permit_extend(&self.held.name, self.held.ids, lease).await {
            Ok(true) => {
                self.held.ends = sent + lease;
                Ok(())
            }
            Ok(false) => {
                self.held.ends = sent;
                Err(Error::Lost(LostReason::Expired))
            }
            Err(failure) => Err(failure.into_error("extend")),
        }
    }

    /// How long from now the permit is held for certain, by this machine's monotonic clock (on Linux
    /// with the time of suspensions), counted from before the last confirmed command was sent.
    pub fn valid_for(&self) -> Duration {
        self.held.ends.left()
    }

    /// The number of permits.
    pub fn count(&self) -> u32 {
        self.held.ids.count()
    }

    /// The id of each permit as Redisson shows it: 32 hexadecimal digits.
    pub fn ids(&self) -> impl Iterator<Item = String> {
        self.held.ids.iter().map(|id| id.simple().to_string())
    }
}

impl fmt::Debug for LeasedPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeasedPermit")
            .field("name", &self.held.name)
            .field("ids", &self.held.ids)
            .finish_non_exhaustive()
    }
}

impl Drop for LeasedPermit {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        let held = self.held.clone();
        self.held.locks.shared().cleanup.spawn(async move {
            let name = held.name.clone();
            if let Err(error) = release(held).await {
                tracing::debug!(semaphore = ?name, %error, "dropped permit not released at once");
            }
        });
    }
}

async fn release(held: Held) -> Result<(), Error> {
    let shared = held.locks.shared().clone();
    match shared.connection.permit_release(&held.name, held.ids).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::Lost(LostReason::Expired)),
        Err(failure) => {
            if !matches!(failure, Failure::Rejected(_)) {
                shared.cleanup.spawn(reconcile(held));
            }
            Err(failure.into_error("release"))
        }
    }
}

/// Repeat the release until Redis has answered twice that the permit is not acquired, or until the
/// lease must have ended.
async fn reconcile(held: Held) {
    let shared = held.locks.shared();
    release_until(shared, held.name.key(), held.ends.instant(), 2, async || {
        match shared.connection.permit_release(&held.name, held.ids).await {
            Ok(true) | Err(Failure::Rejected(_)) => Attempt::Done,
            Ok(false) => Attempt::NotHeld,
            Err(_) => Attempt::Failed,
        }
    })
    .await;
}
