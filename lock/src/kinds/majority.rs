//! The majority lock: one name on several independent Redis servers, held by the owner that holds it
//! on more than half of them. The algorithm known as Redlock, with its limits.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::config::{LockConfig, clamp_lease};
use crate::error::Error;
use crate::holding::guard::Guard;
use crate::kinds::multi_guard::{MultiGuard, release_all};
use crate::kinds::quorum::QuorumRule;
use crate::kinds::reentrant::ReentrantLock;
use crate::kinds::take_back::TakeBack;
use crate::locks::Locks;
use crate::owner::Owner;
use crate::waiting::deadline::{back_off, deadline_after, earlier, outage_pause, time_left};

/// The least time a server gets to answer, and the least that the others get after a majority.
const MIN_TIMEOUT: Duration = Duration::from_millis(10);

/// One lock on several independent Redis servers (Redlock): an owner holds it while it holds it on a
/// majority of them, N/2+1, so that it survives the loss of a minority.
///
/// The servers have to be independent masters: replicas of one another, or nodes of one cluster,
/// count as one server here. Use an odd number, usually five; of three one may fail.
///
/// All servers are asked at once. Each gets a tenth of the lease to answer (never more than its
/// command timeout); once a majority has granted, the others get as long again as that took. The
/// lock counts as acquired if its **validity** is then positive: the lease, less the time since the
/// requests were sent, less a drift of lease/100 + 2 ms for clocks that do not run alike. Whatever
/// else a server granted, in time or after its answer was no longer awaited, is released in the
/// background, on every server. The watchdog renews on each server independently;
/// [`valid_for`](MultiGuard::valid_for) grows only when a majority has renewed, and
/// [`lost`](MultiGuard::lost) ends when fewer than a majority are left.
///
/// While a majority is held, a server that has lost the key, or did not grant it at first, is asked
/// again: at once after the loss, then every third of the lease. It grants only where the key is
/// absent, never over another owner. So a rolling restart of all servers does not lose the lock, if
/// the next server is stopped only after [`held`](MultiGuard::held) counts the last one again: at
/// the latest two thirds of the lease after it answers. This is done in the background, by the first
/// of the [`Locks`] that granted it, until that is shut down; and not with a fixed lease.
///
/// # What it cannot promise
/// It is the same lease as that of one server, made to survive the loss of servers; it does not make
/// an expired lease harmless. Martin Kleppmann, "How to do distributed locking" (2016), and Salvatore
/// Sanfilippo's reply "Is Redlock safe?" are the two sides of the debate. What both agree on:
///
/// - **Pauses.** A holder that is stopped (by its machine, a debugger, a slow disk) between checking
///   `valid_for` and acting on it acts too late, and so does a request that is delayed on its way to
///   the protected resource. Only the resource can refuse that: by a fencing token that rises with
///   each acquire, or by a constraint of the database. This lock has no such token.
/// - **Clocks.** Leases run on the servers' clocks. A clock that jumps, or runs faster than the
///   drift allows for, ends leases early. Let the servers' time be slewed, never stepped.
/// - **Restarts.** A server that forgets a key before its lease has ended, because it writes nothing
///   to disk, or not with `appendfsync always`, or is replaced by a replica that lags, votes twice.
///   Keep a restarted server away for longer than the longest lease, or have it fsync always.
/// - **Order.** Waiters are woken by messages, but not in order, and many contenders at once may
///   split the votes between them and try again after a random pause.
///
/// # On the wire
/// A [`ReentrantLock`] of this name on each server; no key of its own. The servers
/// do not know of each other.
///
/// # Cancellation
/// Every future may be dropped at any time. A command that is under way is finished in the
/// background, and what it acquired is released.
///
/// ```no_run
/// # async fn example(a: redis::Client, b: redis::Client, c: redis::Client)
/// # -> Result<(), redisson_lock::Error> {
/// use redisson_lock::{LockConfig, Locks, Majority};
///
/// // Lazily: one of them may be unreachable now.
/// let servers = [
///     Locks::lazy(a, LockConfig::default())?,
///     Locks::lazy(b, LockConfig::default())?,
///     Locks::lazy(c, LockConfig::default())?,
/// ];
/// let lock = Majority::new(&servers, "lock:settlement")?;
/// let owner = lock.owner();
/// if let Some(guard) = lock.try_acquire(&owner).await? {
///     // ... the work, as long as `guard.valid_for()` is enough for it ...
///     guard.release().await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Majority {
    servers: Arc<[Locks]>,
    name: Arc<str>,
    /// The lock on each server.
    members: Arc<[ReentrantLock]>,
    /// The lease on each server.
    lease: Duration,
    /// Whether the watchdog renews it.
    renewed: bool,
}

/// How one round of asking all servers ended.
enum Round {
    Acquired(MultiGuard),
    /// Other owners hold it on the servers of these indices; nothing is held.
    Refused(Vec<usize>),
}

/// One server's answer.
enum Answer {
    Acquired(Guard),
    Refused,
    Failed(Error),
}

impl Majority {
    /// The lock of this name on these servers. Sends nothing.
    ///
    /// # Errors
    /// [`Error::InvalidName`] as for [`Locks::reentrant`], and when there is no server or one is
    /// given twice.
    pub fn new<'a>(
        servers: impl IntoIterator<Item = &'a Locks>,
        name: &str,
    ) -> Result<Self, Error> {
        let refuse = |reason| Err(Error::InvalidName { name: name.to_owned(), reason });
        let servers: Arc<[Locks]> = servers.into_iter().cloned().collect();
        for (index, locks) in servers.iter().enumerate() {
            if servers[..index].iter().any(|one| Arc::ptr_eq(one.shared(), locks.shared())) {
                return refuse("a server is given twice, and would have two votes");
            }
        }
        let Some(lease) = servers.iter().map(|locks| locks.shared().config.lease).min() else {
            return refuse("a majority lock needs at least one server");
        };
        let members: Result<Arc<[_]>, _> = servers.iter().map(|one| one.reentrant(name)).collect();
        Ok(Self { members: members?, servers, name: name.into(), lease, renewed: true })
    }

    /// The same lock with a fixed lease (at least 1 ms) and without renewal: it expires by itself.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = clamp_lease(lease);
        self.renewed = false;
        let fixed = |lock: &ReentrantLock| lock.clone().with_lease(self.lease);
        self.members = self.members.iter().map(fixed).collect();
        self
    }

    /// A new owner.
    pub fn owner(&self) -> Owner {
        self.servers[0].owner()
    }

    /// How many servers must agree.
    pub fn quorum(&self) -> usize {
        self.members.len() / 2 + 1
    }

    /// Acquire the lock if it is free or already `owner`'s on a majority of the servers; `None` if
    /// not, and then nothing is held. Ends within two tenths of the lease, whatever the servers do.
    ///
    /// # Errors
    /// The first error, when so many servers failed that no majority is left: as
    /// [`ReentrantLock::try_acquire`]. [`Error::Unavailable`] also when they granted too slowly for
    /// the lease.
    pub async fn try_acquire(&self, owner: &Owner) -> Result<Option<MultiGuard>, Error> {
        match self.round(owner, None, None).await? {
            Round::Acquired(guard) => Ok(Some(guard)),
            Round::Refused(_) => Ok(None),
        }
    }

    /// Acquire the lock, waiting as long as it takes.
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

    /// Acquire the lock, waiting no longer than `limit`; `None` when it was not acquired by then: because
    /// others held it, or servers did not answer. With a limit of zero this is
    /// [`try_acquire`](Self::try_acquire).
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire) but for [`Error::Unavailable`]: while no majority answers,
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

    /// Ask all servers; if refused, release everything, wait until the lock is free on one of those
    /// that refused, and ask the others again while holding that one.
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
                    tracing::debug!(lock = %self.name, error = cause, failures, "no majority; retrying");
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
            back_off(tries, deadline).await;
            tries = tries.saturating_add(1);
            let Some(left) = time_left(deadline) else { return Ok(None) };
            // Its holder may be gone from servers that could not be reached: ask those again too.
            first = self.acquire_one_of(&refused, owner, left.min(self.lease)).await;
            if first.is_none() && time_left(deadline).is_none() {
                return Ok(None);
            }
        }
    }

    /// Acquire the lock on one of these servers, waiting no longer than `limit`.
    async fn acquire_one_of(
        &self,
        indices: &[usize],
        owner: &Owner,
        limit: Duration,
    ) -> Option<(usize, Guard)> {
        let mut waiting: FuturesUnordered<_> = indices
            .iter()
            .map(async |&index| (index, self.members[index].acquire_within(owner, limit).await))
            .collect();
        while let Some((index, result)) = waiting.next().await {
            match result {
                Ok(Some(guard)) => return Some((index, guard)),
                Ok(None) => {}
                // The next round asks that server again.
                Err(error) => {
                    tracing::debug!(lock = %self.name, index, %error, "cannot wait")
                }
            }
        }
        None
    }

    /// Ask every server once, except for `first`, on which the lock is held already.
    async fn round(
        &self,
        owner: &Owner,
        first: Option<(usize, Guard)>,
        deadline: Option<Instant>,
    ) -> Result<Round, Error> {
        let (quorum, timeout) = (self.quorum(), self.answer_timeout());
        let spare = self.members.len() - quorum;
        let started = Instant::now();
        let mut give_up_at = earlier(started + timeout, deadline);
        let held = first.as_ref().map(|(index, _)| *index);
        let mut guards: Vec<(usize, Guard)> = first.into_iter().collect();
        let (mut refused, mut failures, mut answers) = (Vec::new(), Vec::new(), guards.len());
        let mut asked: FuturesUnordered<_> = (0..self.members.len())
            .filter(|&index| Some(index) != held)
            .map(async |index| {
                let answer = match self.members[index].try_acquire(owner).await {
                    Ok(Some(guard)) => Answer::Acquired(guard),
                    Ok(None) => Answer::Refused,
                    Err(error) => Answer::Failed(error),
                };
                (index, answer)
            })
            .collect();
        let mut granted = false;
        while refused.len() <= spare && failures.len() <= spare {
            if guards.len() >= quorum && !granted {
                granted = true;
                let grace = started.elapsed().clamp(MIN_TIMEOUT.min(timeout), timeout);
                give_up_at = give_up_at.min(Instant::now() + grace);
            }
            match timeout_at(give_up_at, asked.next()).await {
                Ok(Some((index, Answer::Acquired(guard)))) => guards.push((index, guard)),
                Ok(Some((index, Answer::Refused))) => refused.push(index),
                Ok(Some((_, Answer::Failed(error)))) => failures.push(error),
                Ok(None) | Err(_) => break,
            }
            answers += 1;
        }
        // Commands without an answer are finished and undone by the clean-up queue of their server.
        let silent = self.members.len() - answers;
        drop(asked);
        if guards.len() >= quorum {
            let host = guards[0].0;
            let guard = MultiGuard::new(guards, self.quorum_rule());
            if !guard.valid_for().is_zero() {
                if self.renewed {
                    self.take_back(&guard, owner, host);
                }
                return Ok(Round::Acquired(guard));
            }
            let cause = "the majority answered too late for the lease".to_owned();
            return Err(Error::Unavailable { operation: "acquire", cause });
        }
        let guards = guards.into_iter().map(|(_, guard)| guard);
        for result in release_all(guards, timeout).await {
            if let Err(error) = result {
                tracing::debug!(lock = %self.name, %error, "a vote was not released at once");
            }
        }
        if refused.len() > spare || failures.len() + silent <= spare {
            return Ok(Round::Refused(refused));
        }
        Err(failures.into_iter().next().unwrap_or_else(|| {
            let cause = format!("{silent} of {} servers did not answer", self.members.len());
            Error::Unavailable { operation: "acquire", cause }
        }))
    }

    /// Take back servers in the background of the server `host`, while the lock is held.
    fn take_back(&self, guard: &MultiGuard, owner: &Owner, host: usize) {
        let take_back = TakeBack {
            quorum: guard.quorum().clone(),
            members: self.members.clone(),
            owner: *owner,
            interval: LockConfig::renewal_interval(self.lease),
        };
        let shared = self.servers[host].shared();
        let closing = shared.closing.clone();
        shared.cleanup.spawn(async move {
            tokio::select! {
                () = take_back.run() => {}
                () = closing.cancelled() => {}
            }
        });
    }

    fn quorum_rule(&self) -> QuorumRule {
        QuorumRule {
            needed: self.quorum(),
            drift: self.lease / 100 + Duration::from_millis(2),
            renewed: self.renewed,
            release_timeout: self.answer_timeout(),
        }
    }

    /// How long a server may take to answer: a tenth of the lease, but no longer than a command.
    fn answer_timeout(&self) -> Duration {
        let timeouts = self.servers.iter().map(|locks| locks.shared().connection.timeout());
        let longest = timeouts.max().unwrap_or(MIN_TIMEOUT);
        (self.lease / 10).max(MIN_TIMEOUT).min(longest)
    }
}

impl fmt::Debug for Majority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Majority")
            .field("name", &self.name)
            .field("servers", &self.servers.len())
            .finish_non_exhaustive()
    }
}
