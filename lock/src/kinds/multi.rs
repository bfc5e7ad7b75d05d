//! The multi-lock: several reentrant locks, on one Redis or on several, all or none of them.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::error::Error;
use crate::holding::guard::Guard;
use crate::kinds::multi_guard::{MultiGuard, release_all};
use crate::kinds::quorum::QuorumRule;
use crate::kinds::reentrant::ReentrantLock;
use crate::locks::Locks;
use crate::owner::Owner;
use crate::waiting::deadline::{back_off, deadline_after, earlier, outage_pause, time_left, until};

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
/// # Cancellation
/// Every future may be dropped at any time. A command that is under way is finished in the
/// background, and what it acquired is released.
///
/// ```no_run
/// # async fn example(locks: redisson_lock::Locks) -> Result<(), redisson_lock::Error> {
/// use std::time::Duration;
///
/// let both = locks.multi(["lock:account:7", "lock:account:9"])?;
/// let owner = locks.owner();
/// if let Some(guard) = both.acquire_within(&owner, Duration::from_secs(2)).await? {
///     // ... a transfer between the two ...
///     guard.release().await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct MultiLock {
    /// In the order in which they are tried.
    members: Arc<[Member]>,
    /// Whether the watchdog renews them.
    renewed: bool,
}

#[derive(Debug, Clone)]
struct Member {
    locks: Locks,
    name: String,
    lock: ReentrantLock,
}

/// How one try at all of the locks ended.
enum Round {
    Acquired(MultiGuard),
    /// Another owner holds the lock of this index; none is held.
    Refused(usize),
}

impl Locks {
    /// The multi-lock of these names on this Redis. Sends nothing. For several servers see
    /// [`MultiLock::new`].
    ///
    /// # Errors
    /// [`Error::InvalidName`] as for [`reentrant`](Self::reentrant), and when there is no name.
    pub fn multi<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<MultiLock, Error> {
        MultiLock::new(names.into_iter().map(|name| (self, name)))
    }
}

impl MultiLock {
    /// The multi-lock of these names, each on its own server. A name that is given twice for the
    /// same `Locks` is acquired once. Sends nothing.
    ///
    /// Use one `Locks`, or clones of it, for each server: two that were connected separately to one
    /// server do not know of each other's holds.
    ///
    /// # Errors
    /// [`Error::InvalidName`] as for [`Locks::reentrant`], and when there is no name.
    pub fn new<'a>(members: impl IntoIterator<Item = (&'a Locks, &'a str)>) -> Result<Self, Error> {
        let mut found: Vec<Member> = Vec::new();
        for (locks, name) in members {
            let lock = locks.reentrant(name)?;
            let known = |member: &Member| {
                member.name == name && Arc::ptr_eq(member.locks.shared(), locks.shared())
            };
            if !found.iter().any(known) {
                found.push(Member { locks: locks.clone(), name: name.to_owned(), lock });
            }
        }
        if found.is_empty() {
            let reason = "a multi-lock needs at least one name";
            return Err(Error::InvalidName { name: String::new(), reason });
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self { members: found.into(), renewed: true })
    }

    /// The same locks with a fixed lease (at least 1 ms) and without renewal: they expire by
    /// themselves, the first acquired first.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        let fixed = |member: &Member| {
            let lock = member.lock.clone().with_lease(lease);
            Member { lock, ..member.clone() }
        };
        self.members = self.members.iter().map(fixed).collect();
        self.renewed = false;
        self
    }

    /// Acquire all of the locks if each is free or already `owner`'s; `None`, and none of them, if
    /// another owner holds one. One command for each, one after the other.
    ///
    /// # Errors
    /// As [`ReentrantLock::try_acquire`], for any of the locks; none is held then, and what a server
    /// may have granted is released in the background.
    pub async fn try_acquire(&self, owner: &Owner) -> Result<Option<MultiGuard>, Error> {
        match self.round(owner, None, None).await? {
            Round::Acquired(guard) => Ok(Some(guard)),
            Round::Refused(_) => Ok(None),
        }
    }

    /// Acquire all of the locks, waiting as long as it takes.
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire) but for [`Error::Unavailable`]: while Redis does not answer,
    /// it goes on trying.
    pub async fn acquire(&self, owner: &Owner) -> Result<MultiGuard, Error> {
        loop {
            if let Some(guard) = self.wait(owner, None).await? {
                return Ok(guard);
            }
        }
    }

    /// Acquire all of the locks, waiting no longer than `limit`; `None` when they were not acquired by
    /// then: because others held one or another of them, or a server did not answer. With a limit of
    /// zero this is [`try_acquire`](Self::try_acquire).
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire) but for [`Error::Unavailable`]: while Redis does not answer,
    /// it goes on trying.
    pub async fn acquire_within(
        &self,
        owner: &Owner,
        limit: Duration,
    ) -> Result<Option<MultiGuard>, Error> {
        if limit.is_zero() {
            return self.try_acquire(owner).await;
        }
        self.wait(owner, deadline_after(limit)).await
    }

    async fn wait(
        &self,
        owner: &Owner,
        deadline: Option<Instant>,
    ) -> Result<Option<MultiGuard>, Error> {
        let mut first = None;
        let (mut tries, mut failures): (u32, u32) = (0, 0);
        loop {
            let refused = match self.round(owner, first.take(), deadline).await {
                Ok(Round::Acquired(guard)) => return Ok(Some(guard)),
                Ok(Round::Refused(refused)) => refused,
                Err(Error::Unavailable { cause, .. }) => {
                    failures = failures.saturating_add(1);
                    tracing::debug!(
                        error = cause,
                        failures,
                        "no answer about a multi-lock; retrying"
                    );
                    let pause = Instant::now() + outage_pause(failures);
                    sleep_until(earlier(pause, deadline)).await;
                    if time_left(deadline).is_none() {
                        return Ok(None);
                    }
                    continue;
                }
                Err(error) => return Err(error),
            };
            failures = 0;
            if tries > 0 {
                back_off(tries, deadline).await;
            }
            let Some(left) = time_left(deadline) else { return Ok(None) };
            match self.members[refused].lock.acquire_within(owner, left).await? {
                Some(guard) => first = Some((refused, guard)),
                None if deadline.is_some() => return Ok(None),
                None => {}
            }
            tries = tries.saturating_add(1);
        }
    }

    /// Try each of the locks once, except for `first`, which is held already.
    async fn round(
        &self,
        owner: &Owner,
        first: Option<(usize, Guard)>,
        deadline: Option<Instant>,
    ) -> Result<Round, Error> {
        let (held, mut guards) = match first {
            Some((index, guard)) => (Some(index), vec![guard]),
            None => (None, Vec::new()),
        };
        for index in (0..self.members.len()).filter(|&index| Some(index) != held) {
            let attempt = self.members[index].lock.try_acquire(owner);
            let reply = until(deadline, attempt).await.unwrap_or_else(|| {
                let cause = "no answer when the waiting limit was reached".to_owned();
                Err(Error::Unavailable { operation: "acquire", cause })
            });
            match reply? {
                Some(guard) => guards.push(guard),
                None => {
                    self.release(guards).await;
                    return Ok(Round::Refused(index));
                }
            }
        }
        let guard = MultiGuard::new(guards.into_iter().enumerate(), self.quorum_rule());
        // Acquiring them may have taken longer than the lease of the first.
        if guard.valid_for().is_zero() {
            let cause = "a lease had ended before all of the locks were acquired".to_owned();
            return Err(Error::Unavailable { operation: "acquire", cause });
        }
        Ok(Round::Acquired(guard))
    }

    /// Release what was acquired in a round that failed.
    async fn release(&self, guards: Vec<Guard>) {
        for result in release_all(guards, self.release_timeout()).await {
            // Goes on in the background unless the server has nothing of ours.
            if let Err(error) = result {
                tracing::debug!(%error, "part of a multi-lock was not released at once");
            }
        }
    }

    fn quorum_rule(&self) -> QuorumRule {
        QuorumRule {
            needed: self.members.len(),
            drift: Duration::ZERO,
            renewed: self.renewed,
            release_timeout: self.release_timeout(),
        }
    }

    /// Twice the longest command timeout of the servers: a release first waits for other commands of
    /// its owner, and then for the server.
    fn release_timeout(&self) -> Duration {
        let timeouts = self.members.iter().map(|member| member.locks.shared().connection.timeout());
        timeouts.max().unwrap_or_default() * 2
    }
}
