//! The multi-lock: several reentrant locks, on one Redis or on several, all or none of them. Taking
//! and waiting; what is held is a [`MultiGuard`].

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::bundle::{MultiGuard, Terms, give_back};
use super::limit::{by, ends, left, step_aside};
use super::{Error, Guard, Locks, Owner, ReentrantLock};

/// Several locks that are taken and given back as one.
///
/// It holds nothing while it waits: refused by one of its locks, it gives back those it has, waits
/// for that one, and goes on from there. So two multi-locks never wait for each other, whatever
/// the order of their names and whatever else their owners hold; and nobody waits for a lock whose
/// holder only waits for another. The names are tried in alphabetical order, which lets most
/// contenders meet at the first of them; where they meet later, a random pause parts them. This is
/// "try and back off" (as in Howard Hinnant's "Dining Philosophers Rebooted", 2010, for C++'s
/// `std::lock`). It is not fair: a multi-lock of many busy names may wait long.
///
/// To others each of its locks is an ordinary [`ReentrantLock`] of its owner.
///
/// Locks on several servers: if any server cannot be asked, nothing is taken, so with each server
/// there is *more* that can fail. For locks that survive a server see
/// [`Majority`](super::Majority).
///
/// ```no_run
/// # async fn example(locks: redisson_lock::Locks) -> Result<(), redisson_lock::Error> {
/// use std::time::Duration;
///
/// let both = locks.multi(["lock:account:7", "lock:account:9"])?;
/// let me = locks.owner();
/// if let Some(guard) = both.acquire_within(&me, Duration::from_secs(2)).await? {
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

/// How one try at all of them ended.
enum Round {
    Won(MultiGuard),
    /// This one was refused; nothing is held.
    Refused(usize),
}

impl Locks {
    /// The multi-lock of these names on this Redis. Makes no call. For several servers see
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
    /// same `Locks` is taken once. Makes no call.
    ///
    /// Give each server's `Locks` only once, under whatever number of handles cloned from it: two
    /// connected separately to one server do not know of each other's holds.
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

    /// The same locks with a fixed lease and without the watchdog: they end by themselves after
    /// `lease` (at least 1 ms), the first taken first.
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

    /// Take all of the locks if each is free or already `owner`'s; `None`, and none of them, if
    /// somebody else has one. One command for each, one after the other.
    ///
    /// # Errors
    /// As [`ReentrantLock::try_acquire`], for any of the locks; none is held then, and what a
    /// server took after all is given back in the background.
    pub async fn try_acquire(&self, owner: &Owner) -> Result<Option<MultiGuard>, Error> {
        match self.round(owner, None, None).await? {
            Round::Won(guard) => Ok(Some(guard)),
            Round::Refused(_) => Ok(None),
        }
    }

    /// Take all of the locks, waiting for them as long as it takes.
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire): waiting ends when one of the servers cannot be asked.
    pub async fn acquire(&self, owner: &Owner) -> Result<MultiGuard, Error> {
        loop {
            if let Some(guard) = self.wait(owner, None).await? {
                return Ok(guard);
            }
        }
    }

    /// Take all of the locks, waiting no longer than `limit`; `None` when others had one or another
    /// of them all the time. The limit holds for everything, servers that do not answer included.
    /// With a limit of zero this is [`try_acquire`](Self::try_acquire).
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire); [`Error::Unavailable`] also when a server owes an
    /// answer at the limit.
    pub async fn acquire_within(
        &self,
        owner: &Owner,
        limit: Duration,
    ) -> Result<Option<MultiGuard>, Error> {
        if limit.is_zero() {
            return self.try_acquire(owner).await;
        }
        self.wait(owner, ends(limit)).await
    }

    async fn wait(
        &self,
        owner: &Owner,
        until: Option<Instant>,
    ) -> Result<Option<MultiGuard>, Error> {
        let mut first = None;
        let mut tries: u32 = 0;
        loop {
            let refused = match self.round(owner, first.take(), until).await? {
                Round::Won(guard) => return Ok(Some(guard)),
                Round::Refused(refused) => refused,
            };
            if tries > 0 {
                step_aside(tries, until).await;
            }
            let Some(left) = left(until) else { return Ok(None) };
            match self.members[refused].lock.acquire_within(owner, left).await? {
                Some(guard) => first = Some((refused, guard)),
                None if until.is_some() => return Ok(None),
                None => {}
            }
            tries = tries.saturating_add(1);
        }
    }

    /// Try each of them once, but for the one that is held already.
    async fn round(
        &self,
        owner: &Owner,
        first: Option<(usize, Guard)>,
        until: Option<Instant>,
    ) -> Result<Round, Error> {
        let (had, mut guards) = match first {
            Some((index, guard)) => (Some(index), vec![guard]),
            None => (None, Vec::new()),
        };
        for index in (0..self.members.len()).filter(|&index| Some(index) != had) {
            match by(until, "acquire", self.members[index].lock.try_acquire(owner)).await? {
                Some(guard) => guards.push(guard),
                None => {
                    self.give_up(guards).await;
                    return Ok(Round::Refused(index));
                }
            }
        }
        let guard = MultiGuard::new(guards, self.terms());
        // Taking them may have lasted longer than the lease of the first.
        if guard.valid_for().is_zero() {
            let cause = "a lease had ended before all of the locks were taken".to_owned();
            return Err(Error::Unavailable { operation: "acquire", cause });
        }
        Ok(Round::Won(guard))
    }

    /// Give back what was taken in a round that came to nothing.
    async fn give_up(&self, guards: Vec<Guard>) {
        for result in give_back(guards, self.patience()).await {
            // Whoever could not be told is told in the background, or has nothing of ours.
            if let Err(error) = result {
                tracing::debug!(fault = %error, "part of a multi-lock was not given back at once");
            }
        }
    }

    fn terms(&self) -> Terms {
        Terms {
            needed: self.members.len(),
            drift: Duration::ZERO,
            renewed: self.renewed,
            patience: self.patience(),
        }
    }

    /// The longest that any of the servers may take to answer.
    fn patience(&self) -> Duration {
        let timeouts = self.members.iter().map(|member| member.locks.shared().connection.timeout());
        // A release waits for its turn, and then for the server.
        timeouts.max().unwrap_or_default() * 2
    }
}
