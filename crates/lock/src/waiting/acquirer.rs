//! Acquires a lock of any [`Kind`], and waits for it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::commands::Try;
use crate::connection::failure::Failure;
use crate::error::{Error, LostReason};
use crate::holding::armed::{Armed, Release};
use crate::holding::guard::{Held, RawGuard};
use crate::kind::Kind;
use crate::locks::Locks;
use crate::name::Name;
use crate::owner::Owner;
use crate::request::LockRequest;
use crate::state::hold::Hold;
use crate::state::registry::Entry;
use crate::state::shared::Shared;
use crate::tasks::reconcile::{end_lost_hold, reconcile};
use crate::waiting::fair_queue_ticket::FairQueueTicket;
use crate::waiting::patience::Patience;
use crate::waiting::wait::Waiter;

const OPERATION: &str = "acquire";

#[derive(Debug, Clone)]
pub(crate) struct Acquirer {
    pub(crate) locks: Locks,
    pub(crate) name: Name,
    pub(crate) kind: Kind,
    /// A fixed lease, or `None` for renewal by the watchdog.
    pub(crate) lease: Option<Duration>,
}

/// A try that failed.
struct Failed {
    error: Error,
    in_doubt: Option<Armed<InDoubt>>,
}

impl Failed {
    /// A try that failed after its command was sent. If the outcome is unknown, the server may have
    /// granted `in_doubt`.
    fn after_sending(failure: Failure, in_doubt: InDoubt) -> Self {
        let is_unknown = matches!(failure, Failure::Unknown(_));
        Self {
            error: failure.into_unavailable(OPERATION),
            in_doubt: is_unknown.then(|| Armed::new(in_doubt)),
        }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self {
            error,
            in_doubt: None,
        }
    }
}

/// What the server may have granted to a try without an answer.
#[derive(Clone)]
struct InDoubt {
    locks: Locks,
    request: LockRequest,
    /// When a lease that was granted before the failure has ended.
    until: Instant,
    /// Keeps the entry, which knows the generation.
    _entry: Arc<Entry>,
}

impl Release for InDoubt {
    fn locks(&self) -> &Locks {
        &self.locks
    }

    fn name(&self) -> &str {
        self.request.name.key()
    }

    async fn release(self) -> Result<(), Error> {
        reconcile(self.locks.shared(), &self.request, self.until).await;
        Ok(())
    }
}

impl Acquirer {
    pub(crate) fn request(&self, owner: &Owner) -> LockRequest {
        LockRequest {
            name: self.name.clone(),
            kind: self.kind,
            owner: *owner,
        }
    }

    /// One try, without waiting or queueing.
    pub(crate) async fn try_acquire(&self, owner: &Owner) -> Result<Option<RawGuard>, Error> {
        let started = Instant::now();
        let result = match self.attempt(&self.request(owner), None).await {
            Ok(Try::Acquired(guard)) => Ok(Some(guard)),
            Ok(Try::Refused(_)) => Ok(None),
            Err(failed) => Err(failed.error),
        };
        let counters = self.locks.shared().counters.for_kind(self.kind);
        counters.acquired(&result, started.elapsed(), false);
        result
    }

    /// Acquire the lock, waiting for it no longer than `limit`, and not past
    /// [`Locks::shutdown`].
    pub(crate) async fn acquire(
        &self,
        owner: &Owner,
        limit: Duration,
    ) -> Result<Option<RawGuard>, Error> {
        let shared = self.locks.shared();
        let started = Instant::now();
        // Dropped after the wait, when the clean-ups of the wait are queued.
        let _waiter = shared.waiters.token();
        let result = tokio::select! {
            biased;
            result = self.wait(owner, limit) => result,
            () = shared.closing.cancelled() => Err(Error::Closed),
        };
        let counters = shared.counters.for_kind(self.kind);
        counters.acquired(&result, started.elapsed(), true);
        result
    }

    async fn wait(&self, owner: &Owner, limit: Duration) -> Result<Option<RawGuard>, Error> {
        let shared = self.locks.shared();
        let request = &self.request(owner);
        // Only a fair lock has a queue, in which a waiter has to show that it is alive.
        let ticket = (self.kind == Kind::Fair).then(|| FairQueueTicket::new(shared, request));
        let lease = shared.config.lease;
        let waiter = Waiter {
            wakeups: &shared.wakeups,
            config: &shared.config,
            counters: shared.counters.for_kind(self.kind),
        };
        let patience = Patience::new(&shared.config, limit);
        let deadline = patience.deadline();
        let in_doubt = Mutex::new(None);
        let attempt = || async {
            // At the deadline the place in the queue is void, even if the server is not told that the waiter
            // has left.
            let remaining_wait = deadline.saturating_duration_since(Instant::now());
            let queue_timeout = lease.min(remaining_wait).max(Duration::from_millis(1));
            let queue_timeout = ticket.is_some().then_some(queue_timeout);
            self.attempt_again(request, queue_timeout, &in_doubt).await
        };
        waiter.wait(patience, || request.channel(), attempt).await
    }

    /// One try of a waiting call. What the server may have granted to an earlier try without an answer is
    /// kept in `in_doubt`, and not released while the call goes on: the next try of the owner finds it.
    async fn attempt_again(
        &self,
        request: &LockRequest,
        queue_timeout: Option<Duration>,
        in_doubt: &Mutex<Option<Armed<InDoubt>>>,
    ) -> Result<Try<RawGuard>, Error> {
        let (answer, now_in_doubt) = match self.attempt(request, queue_timeout).await {
            Ok(answer) => (Ok(answer), None),
            Err(Failed {
                error,
                in_doubt: None,
            }) => return Err(error),
            Err(Failed { error, in_doubt }) => (Err(error), in_doubt),
        };
        // This try has raised the generation. Only its own answer counts, and an earlier try has nothing
        // left to release.
        let mut in_doubt = in_doubt.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut decided) = std::mem::replace(&mut *in_doubt, now_in_doubt) {
            decided.disarm();
        }
        answer
    }

    /// One try, finished in the background if the caller's future is dropped.
    async fn attempt(
        &self,
        request: &LockRequest,
        queue_timeout: Option<Duration>,
    ) -> Result<Try<RawGuard>, Failed> {
        let work = attempt(
            self.locks.clone(),
            request.clone(),
            self.lease,
            queue_timeout,
        );
        self.locks.shared().cleanup.finish(work).await
    }
}

/// Send one acquire command and apply its reply. With `queue_timeout` the owner joins the queue of a
/// fair lock.
async fn attempt(
    locks: Locks,
    request: LockRequest,
    fixed_lease: Option<Duration>,
    queue_timeout: Option<Duration>,
) -> Result<Try<RawGuard>, Failed> {
    locks.ensure_running();
    let shared = locks.shared().clone();
    shared.check_open()?;
    request.name.check()?;
    let entry = shared.registry.enter(&request);
    let timeout = shared.connection.timeout();
    let Ok(command) = tokio::time::timeout(timeout, entry.command_lock.lock()).await else {
        let cause = "another operation of this owner is still under way".into();
        return Err(Error::Unavailable {
            operation: OPERATION,
            cause,
        }
        .into());
    };
    let wanted_lease = fixed_lease.unwrap_or(shared.config.lease);
    loop {
        let sent = Instant::now();
        let current = entry.live();
        check_kind(&locks, &request, current.as_deref())?;
        let (depth, lease) = match &current {
            Some(hold) => hold.next_acquire(wanted_lease, Instant::now()),
            None => (1, wanted_lease),
        };
        let reply = shared
            .connection
            .acquire(&request, lease, depth, queue_timeout, &entry.generation)
            .await;
        let failure = match (reply, current) {
            (Ok(Try::Refused(pttl)), None) => return Ok(Try::Refused(pttl)),
            (Ok(Try::Refused(pttl)), Some(hold)) => {
                // The hold to re-enter is gone: report it, and try a first acquire.
                end_lost_hold(&shared, &hold, reason_of_refusal(pttl));
                continue;
            }
            // This future was not polled for so long that the lease has ended already.
            (Ok(Try::Acquired(_)), _) if Instant::now() >= sent + lease => {
                Failure::Unknown("the answer was read after the lease had ended".into())
            }
            (Ok(Try::Acquired(fence)), current) => {
                let renew = fixed_lease.is_none();
                let hold = current
                    .unwrap_or_else(|| begin_hold(&shared, &entry, &request, fence, lease, renew));
                // The hold ended while its re-entry was under way: try a first acquire.
                let Some((check_at, guard)) = hold.acquired(sent, lease, renew) else {
                    continue;
                };
                shared.renewals.insert(&hold, check_at);
                drop(command);
                return Ok(Try::Acquired(RawGuard::new(Held::new(
                    locks, entry, hold, guard,
                ))));
            }
            (Err(failure), _) => failure,
        };
        let in_doubt = InDoubt {
            locks,
            request,
            until: Instant::now() + lease,
            _entry: entry.clone(),
        };
        return Err(Failed::after_sending(failure, in_doubt));
    }
}

/// Create the owner's hold, enter it in `entry`, and count it.
fn begin_hold(
    shared: &Shared,
    entry: &Entry,
    request: &LockRequest,
    fence: u64,
    lease: Duration,
    renew: bool,
) -> Arc<Hold> {
    let id = shared.next_id();
    let hold = Arc::new(Hold::new(id, request.clone(), fence, lease, renew));
    entry.set(hold.clone());
    shared.counters.for_kind(request.kind).holds.add();
    hold
}

/// Why a re-entry was refused: without a key the hold has expired, else another owner has taken it.
fn reason_of_refusal(pttl: i64) -> LostReason {
    if pttl == -2 {
        LostReason::Expired
    } else {
        LostReason::Taken
    }
}

/// Whether the owner may acquire the lock as requested, in view of what it holds.
fn check_kind(locks: &Locks, request: &LockRequest, current: Option<&Hold>) -> Result<(), Error> {
    match conflicting_kind(locks, request, current) {
        Some(held) => Err(Error::OtherKind {
            held,
            wanted: request.kind,
        }),
        None => Ok(()),
    }
}

/// The kind as which the owner holds this lock, if it then may not acquire it as requested.
fn conflicting_kind(locks: &Locks, request: &LockRequest, current: Option<&Hold>) -> Option<Kind> {
    if let Some(hold) = current {
        let held_kind = hold.request.kind;
        return (held_kind != request.kind).then_some(held_kind);
    }
    let held_kind = locks.shared().registry.other_side(request)?.request.kind;
    // A writer may read as well, and go on reading after it has stopped writing. Not the reverse.
    if held_kind == Kind::Write && request.kind == Kind::Read {
        return None;
    }
    Some(held_kind)
}
