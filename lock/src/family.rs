//! The locks as callers see them: one type for the whole family, because all of its members are
//! taken, waited for and asked about alike. How is in `wait`.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use tokio::time::Instant;

use super::guard::{Grip, Guard};
use super::kind::{Fair, Fenced, Member, Read, Reentrant, Write};
use super::locks::Locks;
use super::name::LockName;
use super::wait::Taker;
use super::{Error, Owner};

/// A lock that many processes share and that its owner may take several times.
///
/// Making one costs nothing and makes no call; keep it or make it anew for every use. What the
/// members of the family promise is told by [`ReentrantLock`], [`FencedLock`], [`FairLock`],
/// [`ReadLock`] and [`WriteLock`].
pub struct Lock<M: Member> {
    taker: Taker,
    member: PhantomData<M>,
}

/// One owner at a time, in no particular order. Redisson's `RLock`.
///
/// ```no_run
/// # async fn example(locks: redisson_lock::Locks) -> Result<(), redisson_lock::Error> {
/// let me = locks.owner();
/// if let Some(guard) = locks.reentrant("lock:order:1010")?.try_acquire(&me).await? {
///     // ... the work, which may also watch `guard.lost()` ...
///     guard.release().await?;
/// }
/// # Ok(())
/// # }
/// ```
pub type ReentrantLock = Lock<Reentrant>;

/// A reentrant lock whose guards carry a *fence*: a number that is higher for each first acquire
/// than for all before it. Redisson's `RFencedLock`.
///
/// A lock in Redis cannot stop a holder that was paused past its lease. A resource that remembers
/// the highest fence it has seen, and refuses what comes with a lower one, can; see
/// `examples/fenced_resource.rs`.
///
/// The numbers come from `redisson_lock_token:{name}`, a counter without expiry. They rise as long
/// as Redis keeps it: after a failover to a replica that had not yet received the last number, or
/// the loss of all data, numbers may repeat or begin anew. A resource then refuses what it should
/// let in, until the counter is beyond what it has seen, and two holders of one number are told
/// apart by nobody. A re-entry has the number of the first acquire (Redisson counts it anew).
///
/// ```no_run
/// # async fn example(locks: redisson_lock::Locks) -> Result<(), redisson_lock::Error> {
/// let guard = locks.fenced("lock:ledger")?.acquire(&locks.owner()).await?;
/// // UPDATE ledger SET ..., fence = {fence} WHERE id = 1 AND fence <= {fence}
/// let fence: u64 = guard.fence();
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
pub type FencedLock = Lock<Fenced>;

/// One owner at a time, first come, first served. Redisson's `getFairLock`.
///
/// Who waits stands in a queue in Redis and is told alone when his turn comes; nobody overtakes
/// him, not even a [`try_acquire`](Lock::try_acquire) at the moment the lock is free. A waiter
/// keeps its place by showing itself every third of the configured lease, and one that gives up
/// leaves at once. One that died is passed over within a lease by all clients like this one;
/// Redisson's pass over it, as over each other, after their `fairLockWaitTimeout`, 5 min a place.
/// A waiter that is cut off from Redis for longer than a lease starts again at the end.
///
/// Redisson judges by its machines' clocks, this lock by the server's: keep them together within a
/// minute where both are used. Sharing a name between fair locks and others is a mistake: they
/// exclude each other, but neither the queue nor the wake-ups of one mean anything to the other.
///
/// ```no_run
/// # use std::time::Duration;
/// # async fn example(locks: redisson_lock::Locks) -> Result<(), redisson_lock::Error> {
/// let lock = locks.fair("lock:printer")?;
/// if let Some(guard) = lock.acquire_within(&locks.owner(), Duration::from_secs(5)).await? {
///     guard.release().await?;
/// }
/// # Ok(())
/// # }
/// ```
pub type FairLock = Lock<Fair>;

/// The side of a [`ReadWriteLock`](super::ReadWriteLock) that many owners may hold at once.
pub type ReadLock = Lock<Read>;

/// The side of a [`ReadWriteLock`](super::ReadWriteLock) that excludes every other owner.
pub type WriteLock = Lock<Write>;

impl<M: Member> Lock<M> {
    pub(super) fn new(locks: Locks, name: LockName) -> Self {
        let taker = Taker { locks, name, kind: M::KIND, lease: None };
        Self { taker, member: PhantomData }
    }

    /// The same lock with a fixed lease and without the watchdog: it ends by itself after `lease`
    /// (at least 1 ms), whether or not the work is done. Re-entry never shortens what is held.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.taker.lease = Some(super::config::clamp_lease(lease));
        self
    }

    /// Take the lock if it is free or already `owner`'s; `None` if somebody else has it. One
    /// command, limited by the command timeout.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when Redis does not answer; whatever the server took after all is
    /// given back in the background. [`Error::Rejected`] when it refuses; [`Error::OtherKind`] when
    /// `owner` has it in another way; [`Error::Closed`].
    pub async fn try_acquire(&self, owner: &Owner) -> Result<Option<Guard<M>>, Error> {
        Ok(self.taker.take_at_once(owner).await?.map(Guard::new))
    }

    /// Take the lock, waiting for it as long as it takes.
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire): waiting ends when Redis cannot be asked.
    pub async fn acquire(&self, owner: &Owner) -> Result<Guard<M>, Error> {
        loop {
            if let Some(grip) = self.taker.wait(owner, None).await? {
                return Ok(Guard::new(grip));
            }
        }
    }

    /// Take the lock, waiting no longer than `limit`; `None` when somebody else had it all the
    /// time. The limit holds for everything, a Redis that does not answer included. With a limit
    /// of zero this is [`try_acquire`](Self::try_acquire).
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire); [`Error::Unavailable`] also when Redis owes an answer
    /// at the limit.
    pub async fn acquire_within(
        &self,
        owner: &Owner,
        limit: Duration,
    ) -> Result<Option<Guard<M>>, Error> {
        let grip: Option<Grip> = if limit.is_zero() {
            self.taker.take_at_once(owner).await?
        } else {
            // A limit past the end of time is none.
            self.taker.wait(owner, Instant::now().checked_add(limit)).await?
        };
        Ok(grip.map(Guard::new))
    }

    /// Free the lock whoever holds it; `false` if it was free. Its holder learns of it at the next
    /// renewal. Of a read-write lock only this side is freed: all readers, or the writer with the
    /// reading it does itself.
    ///
    /// # Errors
    /// [`Error::Unknown`] when the answer did not come, else as [`try_acquire`](Self::try_acquire).
    pub async fn force_unlock(&self) -> Result<bool, Error> {
        let reply = self.taker.connection().free(&self.taker.name, M::KIND).await;
        reply.map_err(|failure| failure.outcome("force unlock"))
    }

    /// How long the present holder's lease lasts; `None` if the lock is free, [`Duration::MAX`] if
    /// its key never expires. Of a read-write lock: the longest lease, whichever side has it.
    ///
    /// # Errors
    /// [`Error::Unavailable`] or [`Error::Rejected`].
    pub async fn remaining(&self) -> Result<Option<Duration>, Error> {
        let reply = self.taker.connection().remaining(&self.taker.name).await;
        Ok(match reply.map_err(|failure| failure.unavailable("remaining"))? {
            -2 => None,
            left => Some(u64::try_from(left).map_or(Duration::MAX, Duration::from_millis)),
        })
    }

    /// How often `owner` holds the lock, as the server has it; 0 if it does not.
    ///
    /// # Errors
    /// [`Error::Unavailable`] or [`Error::Rejected`].
    pub async fn hold_count(&self, owner: &Owner) -> Result<u32, Error> {
        let reply = self.taker.connection().depth(&self.taker.claim(owner)).await;
        Ok(reply.map_err(|failure| failure.unavailable("hold count"))?.unwrap_or(0))
    }

    /// Whether anybody holds the lock; of a read-write lock, this side of it.
    ///
    /// # Errors
    /// [`Error::Unavailable`] or [`Error::Rejected`].
    pub async fn is_locked(&self) -> Result<bool, Error> {
        let reply = self.taker.connection().is_held(&self.taker.name, M::KIND).await;
        reply.map_err(|failure| failure.unavailable("is locked"))
    }
}

impl<M: Member> Clone for Lock<M> {
    fn clone(&self) -> Self {
        Self { taker: self.taker.clone(), member: PhantomData }
    }
}

impl<M: Member> fmt::Debug for Lock<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("name", &self.taker.name)
            .field("kind", &M::KIND)
            .field("lease", &self.taker.lease)
            .finish_non_exhaustive()
    }
}
