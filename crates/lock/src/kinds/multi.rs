//! The multi-lock: several reentrant locks, on one Redis or on several, all or none of them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use crate::error::Error;
use crate::holding::guard::Guard;
use crate::kinds::multi_guard::MultiGuard;
use crate::kinds::reentrant::ReentrantLock;
use crate::locks::Locks;
use crate::owner::Owner;
use crate::waiting::patience::{Patience, Tried, back_off};

/// Several locks that are acquired and released as one. Redisson's `RedissonMultiLock`.
///
/// It holds none of its locks while it waits. When one of them is refused, it releases those that it
/// has, waits for the refused one, and tries the others while it holds that one. So two multi-locks
/// never deadlock, whatever the order of their names. The names are tried in alphabetical order, so
/// that most contenders meet at the first of them; a random pause after each refusal separates those
/// that meet later. This is "try and back off" (as in Howard Hinnant's "Dining Philosophers
/// Rebooted", 2010, for C++'s `std::lock`). It is not fair: a multi-lock of many busy names may wait
/// for a long time.
///
/// What its owner holds besides is kept while it waits, and may still be part of a deadlock.
///
/// To other clients each of its locks is an ordinary [`ReentrantLock`] of its owner.
///
/// Locks on several servers: if any server cannot be reached, nothing is acquired, so each further
/// server makes failure *more* likely.
///
/// # On the wire
/// A [`ReentrantLock`] for each name, acquired one after the other and released
/// all at once; no key of its own.
///
/// # Errors
/// Every call fails with [`Error::InvalidName`], and sends nothing, when there is no name, or for a name
/// that no lock may have: see [`Lock`](crate::Lock).
///
/// # Cancellation
/// Every future may be dropped at any time. A command that is under way is finished in the
/// background, and what it acquired is released.
///
/// ```no_run
/// # async fn example(locks: redisson_lock::Locks) -> Result<(), redisson_lock::Error> {
/// use std::time::Duration;
///
/// let both = locks.multi(["lock:account:7", "lock:account:9"]);
/// if let Some(guard) = both.acquire_within(Duration::from_secs(2)).await? {
///     // ... a transfer between the two ...
///     guard.release().await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct MultiLock {
    /// In the order in which they are tried.
    locks: Arc<[ReentrantLock]>,
}

/// A lock that is held already when the others are tried, and its index.
type First = Option<(usize, Guard)>;

enum Round {
    Acquired(MultiGuard),
    /// Another owner holds the lock of this index; of the others, none is kept.
    Refused(usize),
}

impl Locks {
    /// The multi-lock of these names on this Redis. Sends nothing. For several servers see
    /// [`MultiLock::new`].
    pub fn multi<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> MultiLock {
        MultiLock::new(names.into_iter().map(|name| (self, name)))
    }
}

impl MultiLock {
    /// The multi-lock of these names, each on its own server. A name that is given twice for the
    /// same `Locks` is acquired once. Sends nothing.
    ///
    /// Use one `Locks`, or clones of it, for each server: two that were connected separately to one
    /// server do not know of each other's holds.
    pub fn new<'a>(members: impl IntoIterator<Item = (&'a Locks, &'a str)>) -> Self {
        let mut distinct_locks: Vec<ReentrantLock> = Vec::new();
        for (locks, name) in members {
            let is_repeated = distinct_locks.iter().any(|lock| {
                lock.name() == name && Arc::ptr_eq(lock.locks().shared(), locks.shared())
            });
            if !is_repeated {
                distinct_locks.push(locks.lock(name));
            }
        }
        distinct_locks.sort_by(|a, b| a.name().cmp(b.name()));
        Self {
            locks: distinct_locks.into(),
        }
    }

    /// The same locks with a fixed lease (at least 1 ms) that the watchdog does not renew: they expire
    /// by themselves, the first acquired first.
    #[must_use]
    pub fn without_renewal(self, lease: Duration) -> Self {
        Self {
            locks: self
                .locks
                .iter()
                .map(|lock| lock.clone().without_renewal(lease))
                .collect(),
        }
    }

    /// Acquire the locks, waiting as long as it takes.
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire), but while Redis does not answer, the call goes on trying:
    /// it fails with [`Error::Unavailable`] only after
    /// [`LockConfig::with_outage_limit`](crate::LockConfig::with_outage_limit).
    pub async fn acquire(&self) -> Result<MultiGuard, Error> {
        self.acquire_as(&self.owner()?).await
    }

    /// Acquire the locks, waiting no longer than `limit`; `None` when they were not all free at once
    /// until then. With a limit of zero this is [`try_acquire`](Self::try_acquire).
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire), but [`Error::Unavailable`] only at the limit, or after
    /// [`LockConfig::with_outage_limit`](crate::LockConfig::with_outage_limit), if the last try was not
    /// answered.
    pub async fn acquire_within(&self, limit: Duration) -> Result<Option<MultiGuard>, Error> {
        self.acquire_within_as(&self.owner()?, limit).await
    }

    /// Acquire the locks if all are free; `None` if another owner holds one, and then none is acquired.
    /// One command for each, one after the other.
    ///
    /// # Errors
    /// As [`ReentrantLock::try_acquire`], for any of the locks. None is acquired then, and what a server
    /// may have granted is released in the background. [`Error::Unavailable`] also when a lease had ended
    /// before the last lock was granted.
    pub async fn try_acquire(&self) -> Result<Option<MultiGuard>, Error> {
        self.try_acquire_as(&self.owner()?).await
    }

    /// As [`acquire`](Self::acquire), for this owner, which may hold some of them already.
    ///
    /// # Errors
    /// Those of [`acquire`](Self::acquire); [`Error::OtherKind`]; [`Error::ForeignOwner`] when the owner
    /// was made by a [`Locks`] that none of these locks is from.
    pub async fn acquire_as(&self, owner: &Owner) -> Result<MultiGuard, Error> {
        loop {
            if let Some(guard) = self.wait(owner, Duration::MAX).await? {
                return Ok(guard);
            }
        }
    }

    /// As [`acquire_within`](Self::acquire_within), for this owner.
    ///
    /// # Errors
    /// Those of [`acquire_within`](Self::acquire_within); [`Error::OtherKind`] and
    /// [`Error::ForeignOwner`] as for [`acquire_as`](Self::acquire_as).
    pub async fn acquire_within_as(
        &self,
        owner: &Owner,
        limit: Duration,
    ) -> Result<Option<MultiGuard>, Error> {
        if limit.is_zero() {
            return self.try_acquire_as(owner).await;
        }
        self.wait(owner, limit).await
    }

    /// As [`try_acquire`](Self::try_acquire), for this owner.
    ///
    /// # Errors
    /// Those of [`try_acquire`](Self::try_acquire); [`Error::OtherKind`] and [`Error::ForeignOwner`] as
    /// for [`acquire_as`](Self::acquire_as).
    pub async fn try_acquire_as(&self, owner: &Owner) -> Result<Option<MultiGuard>, Error> {
        self.check()?;
        self.check_owner(owner)?;
        match self.round(owner, None).await? {
            Round::Acquired(guard) => Ok(Some(guard)),
            Round::Refused(_) => Ok(None),
        }
    }

    /// Try all locks. If one is refused, release the others, wait for it, and try the others again while
    /// holding it.
    async fn wait(&self, owner: &Owner, limit: Duration) -> Result<Option<MultiGuard>, Error> {
        self.check()?;
        self.check_owner(owner)?;
        let mut patience = Patience::new(&self.locks[0].locks().shared().config, limit);
        let mut first = None;
        let mut tries: u32 = 0;
        loop {
            match patience.attempt(self.round(owner, first.take())).await? {
                Tried::Answered(Round::Acquired(guard)) => return Ok(Some(guard)),
                Tried::Answered(Round::Refused(index)) => {
                    patience.sleep_until(Instant::now() + back_off(tries)).await;
                    tries = tries.saturating_add(1);
                    let remaining_wait = patience.end().saturating_duration_since(Instant::now());
                    match self.locks[index].acquire_by(owner, remaining_wait).await {
                        Ok(guard) => first = guard.map(|guard| (index, guard)),
                        // The next round tries this lock again, and returns its error.
                        Err(error) => {
                            tracing::debug!(index, %error, "cannot wait for one of several locks");
                        }
                    }
                }
                Tried::Unanswered(pause) => patience.sleep_until(Instant::now() + pause).await,
            }
            if patience.is_over() {
                return patience.timed_out();
            }
        }
    }

    /// Try each of the locks once, one after the other, except for `first`.
    async fn round(&self, owner: &Owner, first: First) -> Result<Round, Error> {
        let held = first.as_ref().map(|(index, _)| *index);
        let mut guards: Vec<Guard> = first.into_iter().map(|(_, guard)| guard).collect();
        for (index, lock) in self.locks.iter().enumerate() {
            if Some(index) == held {
                continue;
            }
            if let Some(guard) = lock.acquire_by(owner, Duration::ZERO).await? {
                guards.push(guard);
                continue;
            }
            for released in join_all(guards.into_iter().map(Guard::release)).await {
                // A release that was not answered is repeated in the background.
                if let Err(error) = released {
                    tracing::debug!(%error, "one of several locks was not released at once");
                }
            }
            return Ok(Round::Refused(index));
        }
        let guard = MultiGuard::new(guards);
        if guard.valid_for().is_zero() {
            return Err(Error::Unavailable {
                operation: "acquire",
                cause: "they were acquired too late for their lease".into(),
            });
        }
        Ok(Round::Acquired(guard))
    }

    /// Whether the names can be used.
    fn check(&self) -> Result<(), Error> {
        if self.locks.is_empty() {
            return Err(Error::InvalidName {
                name: String::new(),
                reason: "a multi-lock needs at least one name",
            });
        }
        self.locks.iter().try_for_each(ReentrantLock::check)
    }

    /// An owner of locks on several servers was made by the [`Locks`] of one of them.
    fn check_owner(&self, owner: &Owner) -> Result<(), Error> {
        let mut checks = self
            .locks
            .iter()
            .map(|lock| lock.locks().shared().check_owner(owner));
        if checks.any(|check| check.is_ok()) {
            Ok(())
        } else {
            Err(Error::ForeignOwner)
        }
    }

    fn owner(&self) -> Result<Owner, Error> {
        self.check()?;
        Ok(self.locks[0].locks().owner())
    }
}

impl ReentrantLock {
    fn locks(&self) -> &Locks {
        &self.acquirer.locks
    }

    fn check(&self) -> Result<(), Error> {
        self.acquirer.name.check()
    }

    /// Acquire for an owner that [`MultiLock::check_owner`] has accepted; wait unless `limit` is zero.
    async fn acquire_by(&self, owner: &Owner, limit: Duration) -> Result<Option<Guard>, Error> {
        let guard = match limit.is_zero() {
            true => self.acquirer.try_acquire(owner).await?,
            false => self.acquirer.acquire(owner, limit).await?,
        };
        Ok(guard.map(Guard::new))
    }
}
