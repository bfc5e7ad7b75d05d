//! The reentrant lock: taking it, and waiting for it. Its wire format is Redisson's; what is taken
//! comes back as a [`Guard`].

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::conn::Failure;
use super::guard::Guard;
use super::hold::Hold;
use super::locks::{Locks, settle};
use super::name::LockName;
use super::wake::Wake;
use super::{Error, LostReason, Owner};

/// A lock that many processes share and that its owner may take several times.
///
/// Making one costs nothing and makes no call; keep it or make it anew for every use.
#[derive(Debug, Clone)]
pub struct ReentrantLock {
    locks: Locks,
    name: LockName,
    /// A fixed lease, or `None` for the watchdog.
    lease: Option<Duration>,
}

/// How one try ended.
enum Attempt {
    Won(Guard),
    /// Somebody else has it for so many milliseconds; below zero: without expiry.
    Held(i64),
}

impl ReentrantLock {
    pub(super) fn new(locks: Locks, name: LockName) -> Self {
        Self { locks, name, lease: None }
    }

    /// The same lock with a fixed lease and without the watchdog: it ends by itself after `lease`
    /// (at least 1 ms), whether or not the work is done. Re-entry never shortens what is held.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = Some(super::config::clamp_lease(lease));
        self
    }

    /// Take the lock if it is free or already `owner`'s; `None` if somebody else has it. One
    /// command, limited by the command timeout.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when Redis does not answer; whatever the server took after all is
    /// given back in the background. [`Error::Rejected`] when it refuses; [`Error::Closed`].
    pub async fn try_acquire(&self, owner: &Owner) -> Result<Option<Guard>, Error> {
        match self.attempt(owner).await? {
            Attempt::Won(guard) => Ok(Some(guard)),
            Attempt::Held(_) => Ok(None),
        }
    }

    /// Take the lock, waiting for it as long as it takes.
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire): waiting ends when Redis cannot be asked.
    pub async fn acquire(&self, owner: &Owner) -> Result<Guard, Error> {
        loop {
            if let Some(guard) = self.wait(owner, None).await? {
                return Ok(guard);
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
    ) -> Result<Option<Guard>, Error> {
        if limit.is_zero() {
            return self.try_acquire(owner).await;
        }
        // A limit past the end of time is none.
        self.wait(owner, Instant::now().checked_add(limit)).await
    }

    /// Free the lock whoever holds it; `false` if it was free. Its holder learns of it at the next
    /// renewal.
    ///
    /// # Errors
    /// [`Error::Unknown`] when the answer did not come, else as [`try_acquire`](Self::try_acquire).
    pub async fn force_unlock(&self) -> Result<bool, Error> {
        let reply = self.locks.shared().connection.force_unlock(&self.name).await;
        reply.map_err(|failure| failure.outcome("force unlock"))
    }

    /// How long the present holder's lease lasts; `None` if the lock is free, [`Duration::MAX`] if
    /// its key never expires.
    ///
    /// # Errors
    /// [`Error::Unavailable`] or [`Error::Rejected`].
    pub async fn remaining(&self) -> Result<Option<Duration>, Error> {
        let reply = self.locks.shared().connection.remaining(&self.name).await;
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
        let reply = self.locks.shared().connection.depth(&self.name, *owner).await;
        Ok(reply.map_err(|failure| failure.unavailable("hold count"))?.unwrap_or(0))
    }

    /// Whether anybody holds the lock.
    ///
    /// # Errors
    /// [`Error::Unavailable`] or [`Error::Rejected`].
    pub async fn is_locked(&self) -> Result<bool, Error> {
        let reply = self.locks.shared().connection.exists(&self.name).await;
        reply.map_err(|failure| failure.unavailable("is locked"))
    }

    /// Acquire, subscribe, acquire again, sleep until a message or the holder's lease ends, repeat.
    /// The second acquire closes the gap before the subscription; from then on each try is made
    /// with the next message already awaited, so that none falls between a try and the sleep.
    async fn wait(&self, owner: &Owner, until: Option<Instant>) -> Result<Option<Guard>, Error> {
        if let Attempt::Won(guard) = by(until, "acquire", self.attempt(owner)).await? {
            return Ok(Some(guard));
        }
        let shared = self.locks.shared();
        let subscription = shared.topics.join(self.name.channel());
        let patience = shared.config.connect_timeout + shared.config.command_timeout;
        let hear_by = until.into_iter().fold(Instant::now() + patience, Instant::min);
        let heard = async {
            subscription.heard().await;
            Ok(())
        };
        by(Some(hear_by), "subscribe", heard).await?;

        let mut wake = Wake::none();
        loop {
            let mut message = pin!(subscription.message());
            message.as_mut().enable();
            let held = by(until, "acquire", self.attempt(owner)).await?;
            wake.spend();
            let left = match held {
                Attempt::Won(guard) => return Ok(Some(guard)),
                Attempt::Held(left) => left,
            };
            // A key without expiry is looked at once per lease: its holder may not be a lock.
            let nap = u64::try_from(left).map_or(shared.config.lease, Duration::from_millis);
            let nap = nap.clamp(Duration::from_millis(1), shared.config.lease);
            let nap_until = until.into_iter().fold(Instant::now() + nap, Instant::min);
            tokio::select! {
                () = &mut message => wake = subscription.wake(),
                () = tokio::time::sleep_until(nap_until) => {}
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(None);
            }
        }
    }

    /// One try, finished by the janitor if the caller goes away.
    async fn attempt(&self, owner: &Owner) -> Result<Attempt, Error> {
        let janitor = &self.locks.shared().janitor;
        let work = attempt(self.locks.clone(), self.name.clone(), *owner, self.lease);
        janitor.finish(work).await
    }
}

/// Send one acquire command and draw the consequences of its reply.
async fn attempt(
    locks: Locks,
    name: LockName,
    owner: Owner,
    fixed: Option<Duration>,
) -> Result<Attempt, Error> {
    const OPERATION: &str = "acquire";
    let shared = locks.shared().clone();
    shared.open()?;
    let entry = shared.registry.enter(&name, owner);
    let patience = shared.connection.timeout();
    let Ok(turn) = tokio::time::timeout(patience, entry.turn.lock()).await else {
        let cause = "another operation of this owner is still under way".to_owned();
        return Err(Error::Unavailable { operation: OPERATION, cause });
    };
    let wanted = fixed.unwrap_or(shared.config.lease);
    loop {
        let sent = Instant::now();
        let current = entry.live();
        let (depth, lease) = current.as_ref().map_or((1, wanted), |hold| hold.next(wanted, sent));
        let reply = shared.connection.acquire(&name, owner, lease, depth).await;
        let failure = match (reply, current) {
            (Ok(Some(left)), None) => return Ok(Attempt::Held(left)),
            (Ok(Some(left)), Some(hold)) => {
                // What we thought to re-enter is gone: say so, and see whether the lock is free.
                let gone = left == -2;
                shared.lose(&hold, if gone { LostReason::Expired } else { LostReason::Taken });
                continue;
            }
            // Nobody polled us for so long that the lease is over before it began.
            (Ok(None), _) if Instant::now() >= sent + lease => {
                Failure::Unknown("the answer was read after the lease had ended".to_owned())
            }
            (Ok(None), current) => {
                let renew = fixed.is_none();
                let entered = current
                    .and_then(|hold| Some((hold.entered(sent, lease, renew)?, hold)))
                    .or_else(|| {
                        let id = shared.id();
                        let hold = Arc::new(Hold::new(id, name.clone(), owner, lease, renew));
                        entry.begin(hold.clone());
                        Some((hold.entered(sent, lease, renew)?, hold))
                    });
                let Some((look_at, hold)) = entered else { continue };
                shared.timetable.file(&hold, look_at);
                drop(turn);
                return Ok(Attempt::Won(Guard::new(locks, entry, hold)));
            }
            (Err(failure), _) => failure,
        };
        if matches!(failure, Failure::Unknown(_)) {
            let until = Instant::now() + lease;
            shared.janitor.run(settle(shared.clone(), entry.clone(), until));
        }
        return Err(failure.unavailable(OPERATION));
    }
}

/// Await `action`, but not past `until`.
async fn by<T>(
    until: Option<Instant>,
    operation: &'static str,
    action: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let Some(until) = until else { return action.await };
    match tokio::time::timeout_at(until, action).await {
        Ok(result) => result,
        Err(_) => {
            let cause = "no answer when the waiting limit was reached".to_owned();
            Err(Error::Unavailable { operation, cause })
        }
    }
}
