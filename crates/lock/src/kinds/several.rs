//! The reentrant locks that are acquired as one, of a multi-lock or of a majority lock's servers, and one
//! try at all of them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, timeout_at};

use crate::config::clamp_lease;
use crate::error::{Cause, Error};
use crate::holding::guard::Guard;
use crate::kinds::multi_guard::{MultiGuard, release_all};
use crate::kinds::quorum::QuorumRule;
use crate::kinds::reentrant::ReentrantLock;
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
        Self {
            locks: locks.into(),
            lease,
            renewed: true,
            majority,
        }
    }

    pub(crate) fn without_renewal(self, lease: Duration) -> Self {
        let fixed = |lock: &ReentrantLock| lock.clone().without_renewal(lease);
        let locks = self.locks.iter().map(fixed).collect();
        Self {
            locks,
            lease: clamp_lease(lease),
            renewed: false,
            ..self
        }
    }

    /// Try each of the locks once, except for `first`.
    pub(crate) async fn round(&self, owner: &Owner, first: First) -> Result<Round, Error> {
        let rule = self.rule();
        let mut guards: Vec<_> = first.into_iter().collect();
        let refused = if self.majority {
            self.try_most(owner, &mut guards, rule).await?
        } else {
            self.try_all(owner, &mut guards).await?
        };
        if guards.len() < rule.needed {
            let guards = guards.into_iter().map(|(_, guard)| guard);
            for result in release_all(guards, rule.release_timeout).await {
                // Goes on in the background unless the server has nothing of ours.
                if let Err(error) = result {
                    tracing::debug!(%error, "one of several locks was not released at once");
                }
            }
            return Ok(Round::Refused(refused));
        }
        let host = guards[0].0;
        let guard = MultiGuard::new(guards, rule);
        // Acquiring them may have taken longer than the lease.
        if guard.valid_for().is_zero() {
            return Err(unanswered("they were acquired too late for their lease"));
        }
        if self.majority && self.renewed {
            // In the background of the first server that granted it.
            let shared = self.locks[host].locks().shared();
            let take_back = self.clone().take_back(guard.quorum().clone(), *owner);
            let take_back = shared.closing.clone().run_until_cancelled_owned(take_back);
            shared.cleanup.spawn(async move {
                take_back.await;
            });
        }
        Ok(Round::Acquired(guard))
    }

    /// One after the other, until one is refused: its index.
    async fn try_all(
        &self,
        owner: &Owner,
        guards: &mut Vec<(usize, Guard)>,
    ) -> Result<Vec<usize>, Error> {
        let held = guards.first().map(|(index, _)| *index);
        for (index, lock) in self.locks.iter().enumerate() {
            if Some(index) != held {
                match lock.try_acquire_as(owner).await? {
                    Some(guard) => guards.push((index, guard)),
                    None => return Ok(vec![index]),
                }
            }
        }
        Ok(Vec::new())
    }

    /// All at once; the indices of those that were refused.
    async fn try_most(
        &self,
        owner: &Owner,
        guards: &mut Vec<(usize, Guard)>,
        rule: QuorumRule,
    ) -> Result<Vec<usize>, Error> {
        let (members, timeout) = (&self.locks, rule.release_timeout);
        let spare = members.len() - rule.needed;
        let started = Instant::now();
        let mut give_up_at = started + timeout;
        let held = guards.first().map(|(index, _)| *index);
        let (mut refused, mut failures, mut answers) = (Vec::new(), Vec::new(), guards.len());
        let mut asked: FuturesUnordered<_> = (0..members.len())
            .filter(|&index| Some(index) != held)
            .map(async |index| (index, members[index].try_acquire_as(owner).await))
            .collect();
        let mut granted = false;
        while refused.len() <= spare && failures.len() <= spare {
            if guards.len() >= rule.needed && !granted {
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
        if guards.len() >= rule.needed || refused.len() > spare || failures.len() + silent <= spare
        {
            return Ok(refused);
        }
        Err(failures.into_iter().next().unwrap_or_else(|| {
            unanswered(format!(
                "{silent} of {} servers did not answer",
                members.len()
            ))
        }))
    }

    fn rule(&self) -> QuorumRule {
        let timeout = |lock: &ReentrantLock| lock.locks().shared().connection.timeout();
        // The longest of their servers.
        let command_timeout = self.locks.iter().map(timeout).max().unwrap_or_default();
        let (needed, renewed) = (self.locks.len(), self.renewed);
        if self.majority {
            QuorumRule {
                needed: majority_of(needed),
                drift: self.lease / 100 + Duration::from_millis(2),
                renewed,
                // A tenth of the lease, but no longer than a command.
                release_timeout: (self.lease / 10).max(MIN_TIMEOUT).min(command_timeout),
            }
        } else {
            // A release first waits for other commands of its owner, and then for the server.
            let release_timeout = command_timeout * 2;
            QuorumRule {
                needed,
                drift: Duration::ZERO,
                renewed,
                release_timeout,
            }
        }
    }

    /// Whether the names can be used.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.locks.is_empty() {
            let reason = "a multi-lock needs at least one name";
            return Err(Error::InvalidName {
                name: String::new(),
                reason,
            });
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
            .map(async |&index| {
                (
                    index,
                    self.locks[index].acquire_within_as(owner, limit).await,
                )
            })
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
}

/// An error of a round that Redis did not answer in time.
fn unanswered(cause: impl Into<Cause>) -> Error {
    Error::Unavailable {
        operation: "acquire",
        cause: cause.into(),
    }
}

impl ReentrantLock {
    pub(crate) fn locks(&self) -> &Locks {
        &self.acquirer.locks
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        self.acquirer.name.check()
    }
}
