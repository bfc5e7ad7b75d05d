//! The majority lock: one name on several independent Redis servers, held by the owner that holds it
//! on more than half of them. The algorithm known as Redlock, with its limits.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, timeout_at};

use crate::config::LockConfig;
use crate::connection::server::Server;
use crate::error::Error;
use crate::holding::guard::Guard;
use crate::kinds::multi_guard::MultiGuard;
use crate::kinds::quorum::QuorumRule;
use crate::kinds::several::{First, Members, Round, Several, unanswered, wait};
use crate::kinds::take_back::TakeBack;
use crate::locks::Locks;
use crate::owner::Owner;
use crate::waiting::deadline::deadline_after;

/// The least time a server gets to answer, and the least that the others get after a majority.
const MIN_TIMEOUT: Duration = Duration::from_millis(10);

/// Several independent Redis servers, whose [`MajorityLock`]s survive the loss of a minority. Cheap to
/// clone.
///
/// The servers have to be independent masters: replicas of one another, or nodes of one cluster,
/// count as one server here. Use an odd number, usually five; of three one may fail.
#[derive(Clone)]
pub struct Majority {
    servers: Arc<[Locks]>,
}

impl Majority {
    /// Connect to the servers at these addresses, as [`Server::from_url`] reads them; a minority may be
    /// unreachable now.
    ///
    /// # Cancellation
    /// Dropping the future closes the connections.
    ///
    /// # Errors
    /// [`Error::Rejected`] as [`new`](Self::new), and for an address that cannot be used. The first
    /// error when no majority answers within the command timeout.
    pub async fn connect<'a>(
        urls: impl IntoIterator<Item = &'a str>,
        config: LockConfig,
    ) -> Result<Self, Error> {
        let lazy = |url| Locks::lazy(Server::from_url(url)?, config.clone());
        let servers: Vec<Locks> = urls.into_iter().map(lazy).collect::<Result<_, _>>()?;
        let all = Self::new(&servers)?;
        let mut pings: FuturesUnordered<_> = servers.iter().map(Locks::ping).collect();
        let (mut answered, mut first) = (0, None);
        while answered < all.quorum() {
            match pings.next().await {
                Some(Ok(())) => answered += 1,
                Some(Err(error)) => first = first.or(Some(error)),
                None => return Err(first.unwrap_or(Error::Closed)),
            }
        }
        drop(pings);
        Ok(all)
    }

    /// These servers.
    ///
    /// # Errors
    /// [`Error::Rejected`] when there is none, or one is given twice, which would have two votes.
    pub fn new<'a>(servers: impl IntoIterator<Item = &'a Locks>) -> Result<Self, Error> {
        let servers: Arc<[Locks]> = servers.into_iter().cloned().collect();
        let refuse = |cause: &'static str| {
            Err(Error::Rejected { operation: "connect", cause: cause.into() })
        };
        if servers.is_empty() {
            return refuse("a majority needs at least one server");
        }
        for (index, locks) in servers.iter().enumerate() {
            if servers[..index].iter().any(|one| Arc::ptr_eq(one.shared(), locks.shared())) {
                return refuse("a server is given twice, and would have two votes");
            }
        }
        Ok(Self { servers })
    }

    /// The lock of this name on the servers. Sends nothing.
    pub fn lock(&self, name: &str) -> MajorityLock {
        let members = self.servers.iter().map(|locks| locks.lock(name)).collect();
        MajorityLock { members: Members::new(members) }
    }

    /// How many servers must agree.
    pub fn quorum(&self) -> usize {
        quorum(self.servers.len())
    }

    /// The [`shutdown`](Locks::shutdown) of every server's locks.
    ///
    /// # Cancellation
    /// As there.
    pub async fn shutdown(&self) {
        futures_util::future::join_all(self.servers.iter().map(Locks::shutdown)).await;
    }
}

/// One lock on the servers of a [`Majority`] (Redlock): an owner holds it while it holds it on a
/// majority of them, N/2+1, so that it survives the loss of a minority.
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
/// A [`ReentrantLock`](crate::ReentrantLock) of this name on each server; no key of its own. The servers
/// do not know of each other.
///
/// # Errors
/// Every call fails with [`Error::InvalidName`] as for a [`Lock`](crate::Lock).
///
/// # Cancellation
/// Every future may be dropped at any time. A command that is under way is finished in the
/// background, and what it acquired is released.
///
/// ```no_run
/// # async fn example() -> Result<(), redisson_lock::Error> {
/// use redisson_lock::{LockConfig, Majority};
///
/// let urls = ["redis://10.0.0.1/", "redis://10.0.0.2/", "redis://10.0.0.3/"];
/// let servers = Majority::connect(urls, LockConfig::default()).await?;
/// if let Some(guard) = servers.lock("lock:settlement").try_acquire().await? {
///     // ... the work, as long as `guard.valid_for()` is enough for it ...
///     guard.release().await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MajorityLock {
    /// The lock on each server.
    members: Members,
}

/// One server's answer.
enum Answer {
    Acquired(Guard),
    Refused,
    Failed(Error),
}

fn quorum(servers: usize) -> usize {
    servers / 2 + 1
}

impl MajorityLock {
    /// The same lock with a fixed lease (at least 1 ms) that the watchdog does not renew: it expires by
    /// itself.
    #[must_use]
    pub fn without_renewal(self, lease: Duration) -> Self {
        Self { members: self.members.without_renewal(lease) }
    }

    /// Acquire the lock, waiting as long as it takes.
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire); [`Error::Unavailable`] only after
    /// [`LockConfig::with_outage_limit`], until which it goes on trying while no majority answers.
    pub async fn acquire(&self) -> Result<MultiGuard, Error> {
        self.acquire_as(&self.members.owner()?).await
    }

    /// Acquire the lock, waiting no longer than `limit`; `None` when others held it until then. With a
    /// limit of zero this is [`try_acquire`](Self::try_acquire).
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire); [`Error::Unavailable`] only when at the last try no
    /// majority answered, at the limit or after [`LockConfig::with_outage_limit`].
    pub async fn acquire_within(&self, limit: Duration) -> Result<Option<MultiGuard>, Error> {
        self.acquire_within_as(&self.members.owner()?, limit).await
    }

    /// Acquire the lock if it is free on a majority of the servers; `None` if not, and then nothing is
    /// held. Ends within two tenths of the lease, whatever the servers do.
    ///
    /// # Errors
    /// The first error, when so many servers failed that no majority is left: as
    /// [`Lock::try_acquire`](crate::Lock::try_acquire). [`Error::Unavailable`] also when they granted too slowly for
    /// the lease.
    pub async fn try_acquire(&self) -> Result<Option<MultiGuard>, Error> {
        self.try_acquire_as(&self.members.owner()?).await
    }

    /// As [`acquire`](Self::acquire), for this owner, which may hold it already.
    ///
    /// # Errors
    /// Those of [`acquire`](Self::acquire), and [`Error::OtherKind`].
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
    /// Those of [`acquire_within`](Self::acquire_within), and [`Error::OtherKind`].
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
    /// Those of [`try_acquire`](Self::try_acquire), and [`Error::OtherKind`].
    pub async fn try_acquire_as(&self, owner: &Owner) -> Result<Option<MultiGuard>, Error> {
        self.try_round(owner).await
    }

    /// Take back servers in the background of the server `host`, while the lock is held.
    fn take_back(&self, guard: &MultiGuard, owner: &Owner, host: usize) {
        let take_back = TakeBack {
            quorum: guard.quorum().clone(),
            members: self.members.locks.clone(),
            owner: *owner,
            interval: LockConfig::renewal_interval(self.members.lease),
        };
        let shared = self.members.locks[host].locks().shared();
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
            needed: quorum(self.members.locks.len()),
            drift: self.members.lease / 100 + Duration::from_millis(2),
            renewed: self.members.renewed,
            release_timeout: self.answer_timeout(),
        }
    }

    /// How long a server may take to answer: a tenth of the lease, but no longer than a command.
    fn answer_timeout(&self) -> Duration {
        (self.members.lease / 10).max(MIN_TIMEOUT).min(self.members.command_timeout())
    }
}

impl Several for MajorityLock {
    fn members(&self) -> &Members {
        &self.members
    }

    /// Ask every server once, except for `first`, on which the lock is held already.
    async fn round(&self, owner: &Owner, first: First) -> Result<Round, Error> {
        let members = &self.members.locks;
        let (quorum, timeout) = (quorum(members.len()), self.answer_timeout());
        let spare = members.len() - quorum;
        let started = Instant::now();
        let mut give_up_at = started + timeout;
        let held = first.as_ref().map(|(index, _)| *index);
        let mut guards: Vec<(usize, Guard)> = first.into_iter().collect();
        let (mut refused, mut failures, mut answers) = (Vec::new(), Vec::new(), guards.len());
        let mut asked: FuturesUnordered<_> = (0..members.len())
            .filter(|&index| Some(index) != held)
            .map(async |index| {
                let answer = match members[index].try_acquire_as(owner).await {
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
        let silent = members.len() - answers;
        drop(asked);
        if guards.len() >= quorum {
            let host = guards[0].0;
            let guard = MultiGuard::new(guards, self.quorum_rule());
            if !guard.valid_for().is_zero() {
                if self.members.renewed {
                    self.take_back(&guard, owner, host);
                }
                return Ok(Round::Acquired(guard));
            }
            return Err(unanswered("the majority answered too late for the lease"));
        }
        let guards = guards.into_iter().map(|(_, guard)| guard).collect();
        self.members.give_back(guards, timeout).await;
        if refused.len() > spare || failures.len() + silent <= spare {
            return Ok(Round::Refused(refused));
        }
        Err(failures.into_iter().next().unwrap_or_else(|| {
            unanswered(format!("{silent} of {} servers did not answer", members.len()))
        }))
    }
}

impl fmt::Debug for Majority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Majority").field("servers", &self.servers.len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for MajorityLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MajorityLock")
            .field("name", &self.members.locks[0].name())
            .field("servers", &self.members.locks.len())
            .finish_non_exhaustive()
    }
}
