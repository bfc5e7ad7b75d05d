//! The multi-lock: several reentrant locks, on one Redis or on several, all or none of them.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::kinds::multi_guard::MultiGuard;
use crate::kinds::quorum::QuorumRule;
use crate::kinds::reentrant::ReentrantLock;
use crate::kinds::several::{First, Members, Round, Several, unanswered, wait};
use crate::locks::Locks;
use crate::owner::Owner;
use crate::waiting::deadline::deadline_after;

/// Several locks that are acquired and released as one. Redisson's `RedissonMultiLock`.
///
/// It holds nothing while it waits: refused by one of its locks, it releases those it has, waits for
/// that one, and goes on from there. So two multi-locks never deadlock, whatever the order of their
/// names and whatever else their owners hold. The names are tried in alphabetical order, which lets
/// most contenders meet at the first of them; where they meet later, a random pause parts them. This
/// is "try and back off" (as in Howard Hinnant's "Dining Philosophers Rebooted", 2010, for C++'s
/// `std::lock`). It is not fair: a multi-lock of many busy names may wait long.
///
/// To other clients each of its locks is an ordinary [`ReentrantLock`] of its owner.
///
/// Locks on several servers: if any server cannot be reached, nothing is acquired, so each further
/// server makes failure *more* likely. For a lock that survives the loss of a server see
/// [`Majority`](crate::Majority).
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
    members: Members,
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
        let mut found: Vec<ReentrantLock> = Vec::new();
        for (locks, name) in members {
            let known = |lock: &ReentrantLock| {
                lock.name() == name && Arc::ptr_eq(lock.locks().shared(), locks.shared())
            };
            if !found.iter().any(known) {
                found.push(locks.lock(name));
            }
        }
        found.sort_by(|a, b| a.name().cmp(b.name()));
        Self { members: Members::new(found) }
    }

    /// The same locks with a fixed lease (at least 1 ms) that the watchdog does not renew: they expire
    /// by themselves, the first acquired first.
    #[must_use]
    pub fn without_renewal(self, lease: Duration) -> Self {
        Self { members: self.members.without_renewal(lease) }
    }

    /// Acquire all of the locks, waiting as long as it takes.
    ///
    /// # Errors
    /// As [`ReentrantLock::acquire`], for any of the locks; none is held then.
    pub async fn acquire(&self) -> Result<MultiGuard, Error> {
        self.acquire_as(&self.members.owner()?).await
    }

    /// Acquire all of the locks, waiting no longer than `limit`; `None` when others held one or another
    /// of them until then. With a limit of zero this is [`try_acquire`](Self::try_acquire).
    ///
    /// # Errors
    /// As [`ReentrantLock::acquire_within`].
    pub async fn acquire_within(&self, limit: Duration) -> Result<Option<MultiGuard>, Error> {
        self.acquire_within_as(&self.members.owner()?, limit).await
    }

    /// Acquire all of the locks if each is free; `None`, and none of them, if another owner holds one.
    /// One command for each, one after the other.
    ///
    /// # Errors
    /// As [`ReentrantLock::try_acquire`], for any of the locks; none is held then, and what a server
    /// may have granted is released in the background.
    pub async fn try_acquire(&self) -> Result<Option<MultiGuard>, Error> {
        self.try_acquire_as(&self.members.owner()?).await
    }

    /// As [`acquire`](Self::acquire), for this owner, which may hold some of them already.
    ///
    /// # Errors
    /// As [`ReentrantLock::acquire_as`].
    pub async fn acquire_as(&self, owner: &Owner) -> Result<MultiGuard, Error> {
        loop {
            if let Some(guard) = wait(self, owner, None).await? {
                return Ok(guard);
            }
        }
    }

    /// As [`acquire_within`](Self::acquire_within), for this owner.
    ///
    /// # Errors
    /// As [`ReentrantLock::acquire_within_as`].
    pub async fn acquire_within_as(
        &self,
        owner: &Owner,
        limit: Duration,
    ) -> Result<Option<MultiGuard>, Error> {
        if limit.is_zero() {
            return self.try_acquire_as(owner).await;
        }
        wait(self, owner, deadline_after(limit)).await
    }

    /// As [`try_acquire`](Self::try_acquire), for this owner.
    ///
    /// # Errors
    /// As [`ReentrantLock::try_acquire_as`].
    pub async fn try_acquire_as(&self, owner: &Owner) -> Result<Option<MultiGuard>, Error> {
        self.try_round(owner).await
    }

    fn quorum_rule(&self) -> QuorumRule {
        QuorumRule {
            needed: self.members.locks.len(),
            drift: Duration::ZERO,
            renewed: self.members.renewed,
            release_timeout: self.release_timeout(),
        }
    }

    /// Twice the longest command timeout of the servers: a release first waits for other commands of
    /// its owner, and then for the server.
    fn release_timeout(&self) -> Duration {
        self.members.command_timeout() * 2
    }
}

impl Several for MultiLock {
    fn members(&self) -> &Members {
        &self.members
    }

    /// Try each of the locks once, except for `first`, which is held already.
    async fn round(&self, owner: &Owner, first: First) -> Result<Round, Error> {
        let held = first.as_ref().map(|(index, _)| *index);
        let mut guards: Vec<_> = first.into_iter().map(|(_, guard)| guard).collect();
        for (index, lock) in self.members.locks.iter().enumerate() {
            if Some(index) == held {
                continue;
            }
            match lock.try_acquire_as(owner).await? {
                Some(guard) => guards.push(guard),
                None => {
                    self.members.give_back(guards, self.release_timeout()).await;
                    return Ok(Round::Refused(vec![index]));
                }
            }
        }
        let guard = MultiGuard::new(guards.into_iter().enumerate(), self.quorum_rule());
        // Acquiring them may have taken longer than the lease of the first.
        if guard.valid_for().is_zero() {
            return Err(unanswered("a lease had ended before all of the locks were acquired"));
        }
        Ok(Round::Acquired(guard))
    }
}
