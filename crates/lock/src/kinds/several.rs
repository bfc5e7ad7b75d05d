//! Several locks acquired as one: the reentrant locks of a multi-lock, or of a majority lock's servers,
//! and the wait loop of both.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use crate::config::clamp_lease;
use crate::error::{Cause, Error};
use crate::holding::guard::Guard;
use crate::kinds::multi_guard::{MultiGuard, release_all};
use crate::kinds::reentrant::ReentrantLock;
use crate::locks::Locks;
use crate::owner::Owner;
use crate::waiting::deadline::{back_off, time_left};
use crate::waiting::patience::{Patience, Tried};

/// The locks that are acquired together.
#[derive(Debug, Clone)]
pub(crate) struct Members {
    pub(crate) locks: Arc<[ReentrantLock]>,
    /// The lease of each.
    pub(crate) lease: Duration,
    /// Whether the watchdog renews them.
    pub(crate) renewed: bool,
}

/// A lock that is held already when the others are tried, and its index.
pub(crate) type First = Option<(usize, Guard)>;

/// How one try at all of the locks ended.
pub(crate) enum Round {
    Acquired(MultiGuard),
    /// Other owners hold those of these indices; none is held.
    Refused(Vec<usize>),
}

/// What is acquired in rounds.
pub(crate) trait Several: Sync {
    fn members(&self) -> &Members;

    /// Try each of the locks once, except for `first`.
    fn round(
        &self,
        owner: &Owner,
        first: First,
    ) -> impl Future<Output = Result<Round, Error>> + Send;

    /// One round, without waiting.
    async fn try_round(&self, owner: &Owner) -> Result<Option<MultiGuard>, Error> {
        self.members().check()?;
        match self.round(owner, None).await? {
            Round::Acquired(guard) => Ok(Some(guard)),
            Round::Refused(_) => Ok(None),
        }
    }
}

/// Try all; if refused, hold nothing, wait until one of those that refused is free, and try the
/// others again while holding that one.
pub(crate) async fn wait(
    several: &impl Several,
    owner: &Owner,
    deadline: Option<Instant>,
) -> Result<Option<MultiGuard>, Error> {
    let members = several.members();
    members.check()?;
    let mut patience = Patience::new(&members.locks[0].locks().shared().config, deadline);
    let mut first = None;
    let mut tries: u32 = 0;
    loop {
        match patience.attempt(several.round(owner, first.take())).await? {
            Tried::Answered(Round::Acquired(guard)) => return Ok(Some(guard)),
            Tried::Answered(Round::Refused(refused)) => {
                back_off(tries, patience.end()).await;
                tries = tries.saturating_add(1);
                // Those that could not be reached are asked again too, now and then.
                let limit = time_left(patience.end()).unwrap_or_default().min(members.lease);
                first = members.acquire_one_of(&refused, owner, limit).await;
            }
            Tried::Unanswered(pause) => patience.sleep_until(Instant::now() + pause).await,
        }
        if patience.is_over() {
            return patience.timed_out();
        }
    }
}

impl Members {
    /// Renewed by the watchdog.
    pub(crate) fn new(locks: Vec<ReentrantLock>) -> Self {
        let leases = locks.iter().map(|lock| lock.locks().shared().config.lease);
        let lease = leases.min().unwrap_or_default();
        Self { locks: locks.into(), lease, renewed: true }
    }

    pub(crate) fn without_renewal(self, lease: Duration) -> Self {
        let fixed = |lock: &ReentrantLock| lock.clone().without_renewal(lease);
        let locks = self.locks.iter().map(fixed).collect();
        Self { locks, lease: clamp_lease(lease), renewed: false }
    }

    /// The longest command timeout of their servers.
    pub(crate) fn command_timeout(&self) -> Duration {
        let timeout = |lock: &ReentrantLock| lock.locks().shared().connection.timeout();
        self.locks.iter().map(timeout).max().unwrap_or_default()
    }

    /// Whether the names can be used.
    ///
    /// # Errors
    /// [`Error::InvalidName`], also when there is no name.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.locks.is_empty() {
            let reason = "a multi-lock needs at least one name";
            return Err(Error::InvalidName { name: String::new(), reason });
        }
        self.locks.iter().try_for_each(ReentrantLock::check)
    }

    /// A new owner.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub(crate) fn owner(&self) -> Result<Owner, Error> {
        self.check()?;
        Ok(self.locks[0].locks().owner())
    }

    /// Acquire one of these, waiting no longer than `limit`.
    async fn acquire_one_of(&self, indices: &[usize], owner: &Owner, limit: Duration) -> First {
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
    pub(crate) async fn give_back(&self, guards: Vec<Guard>, timeout: Duration) {
        for result in release_all(guards, timeout).await {
            // Goes on in the background unless the server has nothing of ours.
            if let Err(error) = result {
                tracing::debug!(%error, "one of several locks was not released at once");
            }
        }
    }
}

/// An error of a round that Redis did not answer in time.
pub(crate) fn unanswered(cause: impl Into<Cause>) -> Error {
    Error::Unavailable { operation: "acquire", cause: cause.into() }
}

impl ReentrantLock {
    pub(crate) fn locks(&self) -> &Locks {
        &self.acquirer.locks
    }

    /// # Errors
    /// [`Error::InvalidName`].
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.acquirer.name.check()
    }
}
