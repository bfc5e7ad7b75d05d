//! The semaphore: so many permits that many processes share. Its shape is that of Redisson's
//! `RSemaphore`; what is taken comes back as [`Permits`].

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

use super::Error;
use super::conn::Failure;
use super::limit::ends;
use super::line::{Try, wait};
use super::locks::Locks;
use super::permits::{Permits, undo};
use super::semaphore_calls::{Give, SemaphoreName};

/// A semaphore that processes share, Redisson's included.
///
/// On the wire (Redisson 3.17 to 4.7) the semaphore is a string with the number of free permits;
/// whoever gives permits publishes that number on `redisson_sc:{name}`. It has no permits until
/// somebody [sets](Self::try_set_permits) them.
///
/// A permit has no owner and no lease. If its holder crashes, it is gone until somebody
/// [adds](Self::add_permits) one, as it is with Redisson. A lost *reply*, however, neither takes a
/// permit twice nor gives one twice: each acquire is known by a record of its own,
/// `{name}:permit:<token>`, which expires and which other clients never look at. What remains
/// possible:
///
/// - Permits stay taken when the outcome of a command is unknown and Redis cannot be reached until
///   nine minutes after the acquire (or, for permits held longer, half a minute after the release);
///   or when Redis carries out an acquire more than a minute after the clean-up that undid it.
/// - A permit is given twice when the reply to a release is lost, its holder had held it for more
///   than nine minutes, *and* a second sending is carried out more than a minute after the first.
/// - When the semaphore is deleted and set anew while permits are out, those held for more than nine
///   minutes come on top of the new ones when they are given back.
///
/// Waiters are woken by messages. Those of one process line up and are served in order, so that one
/// who wants many permits is not passed for ever by those who want one; who calls for the first time
/// may pass them all, and between processes there is no order.
///
/// ```no_run
/// # async fn example(locks: redisson_lock::Locks) -> Result<(), redisson_lock::Error> {
/// use std::time::Duration;
///
/// let gate = locks.semaphore("payment:gate")?;
/// gate.try_set_permits(20).await?;
/// if let Some(permit) = gate.acquire_within(1, Duration::from_secs(2)).await? {
///     // ... no more than twenty at once, on all nodes together ...
///     permit.release().await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Semaphore {
    locks: Locks,
    name: SemaphoreName,
}

impl Locks {
    /// The semaphore of this name. Makes no call.
    ///
    /// # Errors
    /// [`Error::InvalidName`] as for [`reentrant`](Self::reentrant).
    pub fn semaphore(&self, name: &str) -> Result<Semaphore, Error> {
        Ok(Semaphore { locks: self.clone(), name: SemaphoreName::new(name)? })
    }
}

impl Semaphore {
    /// Make the semaphore with so many permits; `false`, and nothing changes, if it exists.
    ///
    /// # Errors
    /// [`Error::Unavailable`] or [`Error::Rejected`] when Redis cannot be asked or refuses;
    /// [`Error::Unknown`] when it may have been done, so that it is to be repeated or looked at.
    pub async fn try_set_permits(&self, permits: u32) -> Result<bool, Error> {
        let reply = self.locks.shared().connection.semaphore_set(&self.name, permits).await;
        reply.map_err(|failure| failure.outcome("set permits"))
    }

    /// Add permits, or take some away: then the number of free ones may go below zero until enough
    /// have come back. Makes the semaphore if need be. Also how [forgotten](Permits::forget)
    /// permits are given back.
    ///
    /// # Errors
    /// As [`try_set_permits`](Self::try_set_permits); unlike there, nobody can see afterwards
    /// whether it was done.
    pub async fn add_permits(&self, permits: i64) -> Result<(), Error> {
        let shared = self.locks.shared();
        let (connection, token) = (&shared.connection, shared.token());
        let reply = connection.semaphore_give(&self.name, &token, permits, Give::Always).await;
        reply.map(drop).map_err(|failure| failure.outcome("add permits"))
    }

    /// How many permits are free: 0 if there is no semaphore, below zero if permits were taken away.
    ///
    /// # Errors
    /// [`Error::Unavailable`] or [`Error::Rejected`].
    pub async fn available(&self) -> Result<i64, Error> {
        let reply = self.locks.shared().connection.semaphore_free(&self.name).await;
        Ok(reply.map_err(|failure| failure.unavailable("available"))?.unwrap_or(0))
    }

    /// Take so many permits, or none and `None` if fewer are free or there is no semaphore. One
    /// command, limited by the command timeout; for 0 permits, none.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when Redis does not answer; whatever was taken after all is given back
    /// in the background. [`Error::Rejected`] when it refuses; [`Error::Closed`].
    pub async fn try_acquire(&self, permits: u32) -> Result<Option<Permits>, Error> {
        let work = attempt(self.locks.clone(), self.name.clone(), permits);
        self.locks.shared().janitor.finish(work).await
    }

    /// Take so many permits, waiting for them as long as it takes; also for the semaphore to be made.
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire): waiting ends when Redis cannot be asked.
    pub async fn acquire(&self, permits: u32) -> Result<Permits, Error> {
        loop {
            if let Some(taken) = self.wait(permits, None).await? {
                return Ok(taken);
            }
        }
    }

    /// Take so many permits, waiting no longer than `limit`; `None` when they were not to be had. The
    /// limit holds for everything, a Redis that does not answer included. With a limit of zero this
    /// is [`try_acquire`](Self::try_acquire).
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire); [`Error::Unavailable`] also when Redis owes an answer
    /// at the limit.
    pub async fn acquire_within(
        &self,
        permits: u32,
        limit: Duration,
    ) -> Result<Option<Permits>, Error> {
        if limit.is_zero() {
            return self.try_acquire(permits).await;
        }
        self.wait(permits, ends(limit)).await
    }

    async fn wait(&self, permits: u32, until: Option<Instant>) -> Result<Option<Permits>, Error> {
        wait(self.locks.shared(), self.name.channel(), until, async || {
            Ok(match self.try_acquire(permits).await? {
                Some(taken) => Try::Got(taken),
                None => Try::None(None),
            })
        })
        .await
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Send one acquire command and draw the consequences of its reply.
async fn attempt(
    locks: Locks,
    name: SemaphoreName,
    permits: u32,
) -> Result<Option<Permits>, Error> {
    let shared = locks.shared().clone();
    shared.open()?;
    let taken = Permits::expected(locks, name, permits);
    if permits == 0 {
        return Ok(Some(taken.confirmed()));
    }
    match shared.connection.semaphore_acquire(taken.name(), taken.token(), permits).await {
        Ok(true) => Ok(Some(taken.confirmed())),
        Ok(false) => Ok(None),
        Err(failure) => {
            if matches!(failure, Failure::Unknown(_)) {
                shared.janitor.run(undo(taken));
            }
            Err(failure.unavailable("acquire"))
        }
    }
}
