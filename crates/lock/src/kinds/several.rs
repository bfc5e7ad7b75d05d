//! The reentrant locks that are acquired as one, of a multi-lock or of a majority lock's servers, and one
//! try at all of them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, timeout_at};

use crate::config::{LockConfig, clamp_lease};
use crate::error::{Cause, Error};
use crate::holding::guard::Guard;
use crate::kinds::multi_guard::{MultiGuard, release_all};
use crate::kinds::quorum::QuorumRule;
use crate::kinds::reentrant::ReentrantLock;
use crate::kinds::take_back::TakeBack;
use crate::locks::Locks;
use crate::owner::Owner;

/// The least time a server of a majority gets to answer, and the least that the others get after it.
const MIN_TIMEOUT: Duration = Duration::from_millis(10);

#[derive(Debug, Clone)]
pub(crate) struct Members {
    pub(crate) locks: Arc<[ReentrantLock]>,
    /// The lease of each.
    pub(crate) lease: Duration,
    /// Whether the watchdog renews them.
    pub(crate) renewed: bool,
    /// Whether a majority of them is enough.
    pub(crate) majority: bool,
}

/// A lock that is held already when the others are tried, and its index.
pub(crate) type First = Option<(usize, Guard)>;

pub(crate) enum Round {
    Acquired(MultiGuard),
    /// Other owners hold those of these indices; none is held.
    Refused(Vec<usize>),
}

pub(crate) fn majority_of(servers: usize) -> usize {
    servers / 2 + 1
}

impl Members {
    /// Renewed by the watchdog.
    pub(crate) fn new(locks: Vec<ReentrantLock>, majority: bool) -> Self {
        let leases = locks.iter().map(|lock| lock.locks().shared().config.lease);
        let lease = leases.min().unwrap_or_default();
        Self { locks: locks.into(), lease, renewed: true, majority }
    }

    pub(crate) fn without_renewal(self, lease: Duration) -> Self {
        let fixed = |lock: &ReentrantLock| lock.clone().without_renewal(lease);
        let locks = self.locks.iter().map(fixed).collect();
        Self { locks, lease: clamp_lease(lease), renewed: false, ..self }
    }

    /// Try each of the locks once, except for `first`.
    pub(crate) async fn round(&self, owner: &Owner, first: First) -> Result<Round, Error> {
        if self.majority {
            self.round_of_majority(owner, first).await
        } else {
            self.round_of_all(owner, first).await
        }
    }

    /// One after the other.
    async fn round_of_all(&self, owner: &Owner, first: First) -> Result<Round, Error> {
        // A release first waits for other commands of its owner, and then for the server.
        let timeout = self.command_timeout() * 2;
        let held = first.as_ref().map(|(index, _)| *index);
        let mut guards: Vec<_> = first.into_iter().map(|(_, guard)| guard).collect();
        for (index, lock) in self.locks.iter().enumerate() {
            if Some(index) == held {
                continue;
            }
            match lock.try_acquire_as(owner).await? {
                Some(guard) => guards.push(guard),
                None => {
                    self.give_back(guards, timeout).await;
                    return Ok(Round::Refused(vec![index]));
                }
            }
        }
        let rule = QuorumRule {
            needed: self.locks.len(),
            drift: Duration::ZERO,
            renewed: self.renewed,
            release_timeout: timeout,
        };
        let guard = MultiGuard::new(guards.into_iter().enumerate(), rule);
        // Acquiring them may have taken longer than the lease of the first.
        if guard.valid_for().is_zero() {
            return Err(unanswered("a lease had ended before all of the locks were acquired"));
        }
        Ok(Round::Acquired(guard))
    }

    /// All at once.
    async fn round_of_majority(&self, owner: &Owner, first: First) -> Result<Round, Error> {
        let members = &self.locks;
        // A tenth of the lease, but no longer than a command.
        let timeout = (self.lease / 10).max(MIN_TIMEOUT).min(self.command_timeout());
        let quorum = majority_of(members.len());
        let spare = members.len() - quorum;
        let started = Instant::now();
        let mut give_up_at = started + timeout;
        let held = first.as_ref().map(|(index, _)| *index);
        let mut guards: Vec<(usize, Guard)> = first.into_iter().collect();
        let (mut refused, mut failures, mut answers) = (Vec::new(), Vec::new(), guards.len());
        let mut asked: FuturesUnordered<_> = (0..members.len())
            .filter(|&index| Some(index) != held)
            .map(async |index| (index, members[index].try_acquire_as(owner).await))
            .collect();
        let mut granted = false;
        while refused.len() <= spare && failures.len() <= spare {
            if guards.len() >= quorum && !granted {
                granted = true;
                let grace = started.elapsed().clamp(MIN_TIMEOUT.min(timeout), timeout);
                give_up_at = give_up_at.min(Instant::now() + grace);
            }
            match timeout_at(give_up_at, asked.next()).await {
                Ok(Some((index, Ok(Some(guard))))) => guards.push((index, guard)),
                Ok(Some((index, Ok(None)))) => refused.push(index),
                Ok(Some((_, Err(error)))) => failures.push(error),
                Ok(None) | Err(_) => break,
            }
            answers += 1;
        }
        // Commands without an answer are finished and undone by the clean-up queue of their server.
        let silent = members.len() - answers;
        drop(asked);
        if guards.len() >= quorum {
            let host = guards[0].0;
            let rule = QuorumRule {
                needed: quorum,
                drift: self.lease / 100 + Duration::from_millis(2),
                renewed: self.renewed,
                release_timeout: timeout,
            };
            let guard = MultiGuard::new(guards, rule);
            if !guard.valid_for().is_zero() {
                if self.renewed {
                    self.take_back(&guard, owner, host);
                }
                return Ok(Round::Acquired(guard));
            }
            return Err(unanswered("the majority answered too late for the lease"));
        }
        let guards = guards.into_iter().map(|(_, guard)| guard).collect();
        self.give_back(guards, timeout).await;
        if refused.len() > spare || failures.len() + silent <= spare {
            return Ok(Round::Refused(refused));
        }
        Err(failures.into_iter().next().unwrap_or_else(|| {
            unanswered(format!("{silent} of {} servers did not answer", members.len()))
        }))
    }

    /// Take back servers in the background of the server `host`, while the lock is held.
    fn take_back(&self, guard: &MultiGuard, owner: &Owner, host: usize) {
        let take_back = TakeBack {
            quorum: guard.quorum().clone(),
            members: self.locks.clone(),
            owner: *owner,
            interval: LockConfig::renewal_interval(self.lease),
        };
        let shared = self.locks[host].locks().shared();
        let closing = shared.closing.clone();
        shared.cleanup.spawn(async move {
            tokio::select! {
                () = take_back.run() => {}
                () = closing.cancelled() => {}
            }
        });
    }

    /// The longest command timeout of their servers.
    fn command_timeout(&self) -> Duration {
        let timeout = |lock: &ReentrantLock| lock.locks().shared().connection.timeout();
        self.locks.iter().map(timeout).max().unwrap_or_default()
    }

    /// Whether the names can be used.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.locks.is_empty() {
            let reason = "a multi-lock needs at least one name";
            return Err(Error::InvalidName { name: String::new(), reason });
        }
        self.locks.iter().try_for_each(ReentrantLock::check)
    }

    pub(crate) fn owner(&self) -> Result<Owner, Error> {
        self.check()?;
        Ok(self.locks[0].locks().owner())
    }

    /// Acquire one of these, waiting no longer than `limit`.
    pub(crate) async fn acquire_one_of(
        &self,
        indices: &[usize],
        owner: &Owner,
        limit: Duration,
    ) -> First {
        let mut waiting: FuturesUnordered<_> = indices
            .iter()
            .map(async |&index| (index, self.locks[index].acquire_within_as(owner, limit).await))
            .collect();
        while let Some((index, result)) = waiting.next().await {
            match result {
                Ok(Some(guard)) => return Some((index, guard)),
                Ok(None) => {}
                // The next round tries it again, and reports what is the matter.
                Err(error) => {
                    tracing::debug!(index, %error, "cannot wait for one of several locks")
                }
            }
        }
        None
    }

    /// Release what was acquired in a round that failed.
    async fn give_back(&self, guards: Vec<Guard>, timeout: Duration) {
        for result in release_all(guards, timeout).await {
            // Goes on in the background unless the server has nothing of ours.
            if let Err(error) = result {
                tracing::debug!(%error, "one of several locks was not released at once");
            }
        }
    }
}

/// An error of a round that Redis did not answer in time.
fn unanswered(cause: impl Into<Cause>) -> Error {
    Error::Unavailable { operation: "acquire", cause: cause.into() }
}

impl ReentrantLock {
    pub(crate) fn locks(&self) -> &Locks {
        &self.acquirer.locks
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        self.acquirer.name.check()
    }
}
