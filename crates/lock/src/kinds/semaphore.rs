//! The semaphore: a number of permits that many processes share, with or without leases. What is acquired
//! are [`Permits`].

use std::time::Duration;

use tokio::time::Instant;

use crate::cleanup::token::{self, Token};
use crate::commands::Try;
use crate::commands::semaphore::{ReleaseIf, channel};
use crate::error::Error;
use crate::kinds::permits::{HeldPermits, Permits, Plain, SemaphoreKind};
use crate::locks::Locks;
use crate::name::Name;
use crate::waiting::patience::Patience;
use crate::waiting::wait::Waiter;

/// A semaphore that many processes share, Redisson's included.
///
/// It has no permits until they are [set](Self::try_set_permits). With leases it is a
/// [`LeasedSemaphore`](crate::LeasedSemaphore).
///
/// A permit of this kind has no owner and no lease. If its holder crashes, it stays taken until one is
/// [added](Self::add_permits), as with Redisson. A lost *reply*, however, neither acquires a permit
/// twice nor releases one twice: each acquire has a record, `{name}:permit:<token>`, which expires
/// and which other clients never read. What remains possible:
///
/// - Permits stay taken when the outcome of a command is unknown and Redis cannot be reached until
///   nine minutes after the acquire (or, for permits held longer, half a minute after the release);
///   or when Redis executes an acquire more than a minute after the clean-up that undid it.
/// - A permit is released twice when the reply to a release is lost, the permit had been held for
///   more than nine minutes, *and* a second sending is executed more than a minute after the first.
/// - When the semaphore is deleted and set again while permits are out, those held for more than
///   nine minutes, or [split off](Permits::split), are added to the new ones when they are released.
///
/// Waiters are woken by messages. Those of one process are served in order, so that a waiter for many
/// permits is not overtaken forever by waiters for one: the first holds the others up for a third of
/// the configured lease, then goes to the end, since it may ask for more than there are; a new
/// caller may overtake them all with its first try, and between processes there is no order.
///
/// # On the wire
/// As Redisson 3.17 to 4.7: a string with the number of free permits; a release publishes that number
/// on `redisson_sc:{name}`. The records of acquires are this crate's own.
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
/// let semaphore = locks.semaphore("payments");
/// semaphore.try_set_permits(20).await?;
/// if let Some(permits) = semaphore.acquire_within(1, Duration::from_secs(2)).await? {
///     // ... no more than twenty at once, on all nodes together ...
///     permits.release().await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Semaphore<K: SemaphoreKind = Plain> {
    locks: Locks,
    name: Name,
    pub(super) kind: K,
}

impl Locks {
    /// The semaphore of this name. Sends nothing.
    pub fn semaphore(&self, name: &str) -> Semaphore {
        Semaphore::new(self, name, Plain)
    }
}

impl<K: SemaphoreKind> Semaphore<K> {
    pub(super) fn new(locks: &Locks, name: &str, kind: K) -> Self {
        Self {
            locks: locks.clone(),
            name: Name::new(name),
            kind,
        }
    }

    /// Create the semaphore with this number of permits; `false`, and nothing changes, if it exists.
    ///
    /// # Errors
    /// [`Error::Unavailable`] or [`Error::Rejected`] when Redis cannot be reached or refuses;
    /// [`Error::Unknown`] when it may have been done: call it again, or check
    /// [`available`](Self::available).
    pub async fn try_set_permits(&self, permits: u32) -> Result<bool, Error> {
        let reply = self
            .locks
            .connection(&self.name)?
            .semaphore_set(&self.name, permits)
            .await;
        reply.map_err(|failure| failure.into_error("set permits"))
    }

    /// Add permits, or remove some if negative: the number of free ones may then be below zero until
    /// enough are released. Creates the semaphore if it does not exist. Also how
    /// [forgotten](Permits::forget) permits are released.
    ///
    /// # Errors
    /// As [`try_set_permits`](Self::try_set_permits); after [`Error::Unknown`] there is no way to see
    /// whether it was done.
    pub async fn add_permits(&self, permits: i64) -> Result<(), Error> {
        self.add(permits, ReleaseIf::Always).await.map(drop)
    }

    async fn add(&self, permits: i64, condition: ReleaseIf) -> Result<bool, Error> {
        let token = self.locks.shared().token();
        let reply = self
            .locks
            .connection(&self.name)?
            .semaphore_release(&self.name, &token, permits, condition)
            .await;
        reply.map_err(|failure| failure.into_error("add permits"))
    }

    /// How many permits are free, those included that have expired: 0 if there is no semaphore, below zero
    /// if permits were removed.
    ///
    /// # Errors
    /// [`Error::Unavailable`] or [`Error::Rejected`].
    pub async fn available(&self) -> Result<i64, Error> {
        let reply = K::available(self.locks.connection(&self.name)?, &self.name).await;
        reply.map_err(|failure| failure.into_unavailable("available"))
    }

    /// Acquire this number of permits together, or none and `None` if fewer are free or there is no
    /// semaphore. One command, limited by the command timeout, whose work on the server grows with the
    /// number if they have leases; for 0 permits, none.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when Redis does not answer; what it may have granted is released in
    /// the background. [`Error::Rejected`] when it refuses; [`Error::Closed`].
    pub async fn try_acquire(&self, permits: u32) -> Result<Option<Permits<K>>, Error> {
        let started = Instant::now();
        let result = self.attempt(permits).await.map(|tried| match tried {
            Try::Acquired(permits) => Some(permits),
            Try::Refused(_) => None,
        });
        K::Held::counters(&self.locks).acquired(&result, started.elapsed(), false);
        result
    }

    /// Acquire all permits that are free, perhaps none. Two commands, again if another client acquires
    /// some in between.
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire).
    pub async fn drain(&self) -> Result<Permits<K>, Error> {
        loop {
            let free = u32::try_from(self.available().await?.max(0)).unwrap_or(u32::MAX);
            if let Some(permits) = self.try_acquire(free).await? {
                return Ok(permits);
            }
        }
    }

    /// Acquire this number of permits together, waiting as long as it takes; also for the semaphore to be
    /// created. The waiters of one process are served in order, but one that could not be served for
    /// a third of the configured lease lets the others pass: it may ask for more permits than there are.
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire); [`Error::Unavailable`] only after
    /// [`LockConfig::with_outage_limit`](crate::LockConfig::with_outage_limit), until which it goes on
    /// trying while Redis does not answer.
    pub async fn acquire(&self, permits: u32) -> Result<Permits<K>, Error> {
        loop {
            if let Some(permits) = self.wait(permits, Duration::MAX).await? {
                return Ok(permits);
            }
        }
    }

    /// Acquire this number of permits, waiting no longer than `limit`; `None` when too few were free
    /// until then. With a limit of zero this is [`try_acquire`](Self::try_acquire).
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire); [`Error::Unavailable`] only when no try was answered, or
    /// not the last that ended: at the limit, or after
    /// [`LockConfig::with_outage_limit`](crate::LockConfig::with_outage_limit).
    pub async fn acquire_within(
        &self,
        permits: u32,
        limit: Duration,
    ) -> Result<Option<Permits<K>>, Error> {
        if limit.is_zero() {
            return self.try_acquire(permits).await;
        }
        self.wait(permits, limit).await
    }

    async fn wait(&self, permits: u32, limit: Duration) -> Result<Option<Permits<K>>, Error> {
        let (shared, counters) = (self.locks.shared(), K::Held::counters(&self.locks));
        let waiter = Waiter {
            wakeups: &shared.wakeups,
            config: &shared.config,
            counters,
            longest_sleep: shared.config.lease / 3,
            in_turn: true,
        };
        let patience = Patience::new(&shared.config, limit);
        let channel = || channel(&self.name).into();
        let wait = waiter.wait(patience, channel, || self.attempt(permits));
        shared.unless_closed(counters, wait).await
    }

    /// One try, finished in the background if the caller's future is dropped.
    async fn attempt(&self, permits: u32) -> Result<Try<Permits<K>>, Error> {
        self.locks
            .shared()
            .cleanup
            .finish(attempt(self.clone(), permits))
            .await
    }
}

impl Semaphore {
    /// Add permits, but only if the semaphore exists; `false`, and nothing changes, if it does not, as it
    /// may have been deleted or have expired while permits were out. Redisson's `releaseIfExists` (from
    /// 4.3 on).
    ///
    /// # Errors
    /// As [`add_permits`](Self::add_permits).
    pub async fn add_permits_if_exists(&self, permits: u32) -> Result<bool, Error> {
        self.add(permits.into(), ReleaseIf::Exists).await
    }
}

/// Send one acquire command and apply its reply.
async fn attempt<K: SemaphoreKind>(
    semaphore: Semaphore<K>,
    permits: u32,
) -> Result<Try<Permits<K>>, Error> {
    let Semaphore { locks, name, kind } = semaphore;
    locks.shared().check_open()?;
    name.check()?;
    let held = kind.request(locks, name, permits);
    if permits == 0 {
        return Ok(Try::Acquired(Permits::acquired(held)));
    }
    match held.send_acquire().await {
        Ok(Try::Acquired(())) => Ok(Try::Acquired(Permits::acquired(held))),
        Ok(Try::Refused(free_in)) => Ok(Try::Refused(free_in)),
        Err(failure) => Err(token::not_acquired(held, failure)),
    }
}
