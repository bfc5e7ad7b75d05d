//! The leased semaphore: its permits have ids and leases, so that those of a crashed holder are freed.
//! Modelled on Redisson's `RPermitExpirableSemaphore`; what is acquired are [`LeasedPermits`].

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

use crate::commands::leased_semaphore::PermitIds;
use crate::commands::semaphore::{ReleaseIf, SemaphoreName};
use crate::config::clamp_lease;
use crate::connection::command_connection::CommandConnection;
use crate::connection::failure::Failure;
use crate::error::Error;
use crate::kinds::leased_permits::{Held, LeasedPermits, reconcile};
use crate::locks::Locks;
use crate::waiting::deadline::deadline_after;
use crate::waiting::permit_queue::{Try, wait};

/// A semaphore whose permits expire, shared with Redisson's clients.
///
/// The ids make every command count once, however often it is sent, and a permit that is not
/// released is free again after its lease: none can be lost for longer, and none released twice. As
/// with every lease, a holder that outlives it is one too many: check
/// [`valid_for`](LeasedPermits::valid_for), and [`extend`](LeasedPermits::extend) it in time, or have it
/// [renewed](Self::with_renewal).
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
/// # Errors
/// Every call fails with [`Error::InvalidName`], and sends nothing, for a name that no lock may have:
/// see [`Lock`](crate::Lock).
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
/// let semaphore = locks.leased_semaphore("payments", Duration::from_secs(30)).with_renewal();
/// semaphore.try_set_permits(20).await?;
/// let permit = semaphore.acquire(1).await?;
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
    renewed: bool,
}

impl Locks {
    /// The semaphore of this name whose permits last for `lease` (at least 1 ms). Sends nothing.
    pub fn leased_semaphore(&self, name: &str, lease: Duration) -> LeasedSemaphore {
        let (name, lease) = (SemaphoreName::new(name), clamp_lease(lease));
        LeasedSemaphore { locks: self.clone(), name, lease, renewed: false }
    }
}

impl LeasedSemaphore {
    /// The same semaphore, whose permits are extended every third of the lease for as long as they are
    /// held; until [`Locks::shutdown`] at the latest.
    #[must_use]
    pub fn with_renewal(self) -> Self {
        Self { renewed: true, ..self }
    }

    /// Create the semaphore with this number of permits; `false`, and nothing changes, if it exists.
    ///
    /// # Errors
    /// [`Error::Unavailable`] or [`Error::Rejected`] when Redis cannot be reached or refuses;
    /// [`Error::Unknown`] when it may have been done: call it again, or check
    /// [`available`](Self::available).
    pub async fn try_set_permits(&self, permits: u32) -> Result<bool, Error> {
        let reply = self.connection()?.semaphore_set(&self.name, permits).await;
        reply.map_err(|failure| failure.into_error("set permits"))
    }

    /// Add permits, or remove some if negative: the number of free ones may then be below zero until
    /// enough are released. Creates the semaphore if it does not exist.
    ///
    /// # Errors
    /// As [`try_set_permits`](Self::try_set_permits).
    pub async fn add_permits(&self, permits: i64) -> Result<(), Error> {
        let token = self.locks.shared().token();
        let connection = self.connection()?;
        let reply =
            connection.semaphore_release(&self.name, &token, permits, ReleaseIf::Always).await;
        reply.map(drop).map_err(|failure| failure.into_error("add permits"))
    }

    /// How many permits are free, those included that have expired: 0 if there is no semaphore.
    ///
    /// # Errors
    /// [`Error::Unavailable`] or [`Error::Rejected`].
    pub async fn available(&self) -> Result<i64, Error> {
        let reply = self.connection()?.permits_available(&self.name).await;
        reply.map_err(|failure| failure.into_unavailable("available"))
    }

    /// The connection for a command about this semaphore.
    fn connection(&self) -> Result<&CommandConnection, Error> {
        self.name.check()?;
        Ok(&self.locks.shared().connection)
    }

    /// Acquire this number of permits together, or none and `None` if fewer are free or there is no
    /// semaphore. One command, limited by the command timeout, whose work on the server grows with the
    /// number; for 0 permits, none.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when Redis does not answer; what it may have granted is released in
    /// the background. [`Error::Rejected`] when it refuses; [`Error::Closed`].
    pub async fn try_acquire(&self, permits: u32) -> Result<Option<LeasedPermits>, Error> {
        let started = Instant::now();
        let result = self.attempt(permits).await.map(|tried| match tried {
            Try::Acquired(permits) => Some(permits),
            Try::NotFree(_) => None,
        });
        let counters = &self.locks.shared().counters.leased_semaphore;
        counters.acquired(&result, started.elapsed(), false);
        result
    }

    /// Acquire all permits that are free, perhaps none. Two commands, again if another client acquires
    /// some in between.
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire).
    pub async fn drain(&self) -> Result<LeasedPermits, Error> {
        loop {
            let free = u32::try_from(self.available().await?.max(0)).unwrap_or(u32::MAX);
            if let Some(permits) = self.try_acquire(free).await? {
                return Ok(permits);
            }
        }
    }

    /// Acquire this number of permits together, waiting as long as it takes; also for the semaphore to
    /// be created. The waiters of one process are served in order, but one that could not be served for
    /// a third of the configured lease lets the others pass: it may ask for more permits than there are.
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire); [`Error::Unavailable`] only after
    /// [`LockConfig::with_outage_limit`](crate::LockConfig::with_outage_limit), until which it goes on
    /// trying while Redis does not answer.
    pub async fn acquire(&self, permits: u32) -> Result<LeasedPermits, Error> {
        loop {
            if let Some(permits) = self.wait(permits, None).await? {
                return Ok(permits);
            }
        }
    }

    /// As [`acquire`](Self::acquire), waiting no longer than `limit`; `None` when too few were free until
    /// then. With a limit of zero this is [`try_acquire`](Self::try_acquire).
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire); [`Error::Unavailable`] only when no try was answered, or
    /// not the last that ended: at the limit, or after
    /// [`LockConfig::with_outage_limit`](crate::LockConfig::with_outage_limit).
    pub async fn acquire_within(
        &self,
        permits: u32,
        limit: Duration,
    ) -> Result<Option<LeasedPermits>, Error> {
        if limit.is_zero() {
            return self.try_acquire(permits).await;
        }
        self.wait(permits, deadline_after(limit)).await
    }

    async fn wait(
        &self,
        permits: u32,
        deadline: Option<Instant>,
    ) -> Result<Option<LeasedPermits>, Error> {
        let (shared, channel) = (self.locks.shared(), self.name.channel());
        let counters = &shared.counters.leased_semaphore;
        wait(shared, counters, channel, deadline, || self.attempt(permits)).await
    }

    /// One try, finished in the background if the caller's future is dropped.
    async fn attempt(&self, permits: u32) -> Result<Try<LeasedPermits>, Error> {
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
async fn attempt(semaphore: LeasedSemaphore, permits: u32) -> Result<Try<LeasedPermits>, Error> {
    let LeasedSemaphore { locks, name, lease, renewed } = semaphore;
    let shared = locks.shared().clone();
    shared.check_open()?;
    name.check()?;
    let (ids, sent) = (PermitIds::new(permits), Instant::now());
    let held = Held::new(locks, name, ids, sent, lease);
    let acquired = |held| Try::Acquired(LeasedPermits::acquired(held, renewed.then_some(lease)));
    if permits == 0 {
        return Ok(acquired(held));
    }
    let reply = shared.connection.permit_acquire(&held.name, ids, lease).await;
    let failure = match reply {
        Ok(None) if !held.valid_for().is_zero() => return Ok(acquired(held)),
        // This future was not polled for so long that the lease is over before it began.
        Ok(None) => Failure::Unknown("the answer was read after the lease had ended".into()),
        Ok(Some(free_in)) => {
            return Ok(Try::NotFree(u64::try_from(free_in).ok().map(Duration::from_millis)));
        }
        Err(failure) => failure,
    };
    if matches!(failure, Failure::Unknown(_)) {
        shared.cleanup.spawn(reconcile(held, Instant::now() + lease));
    }
    Err(failure.into_unavailable("acquire"))
}
