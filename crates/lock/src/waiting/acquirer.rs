//! Acquires a lock of any [`Kind`], and waits for it: the wait loop.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::cleanup::reconcile::{end_lost_hold, reconcile};
use crate::commands::lock::AcquireReply;
use crate::connection::failure::Failure;
use crate::error::{Error, LostReason};
use crate::holding::guard::{Held, RawGuard};
use crate::holding::hold::Hold;
use crate::holding::registry::Entry;
use crate::holding::request::LockRequest;
use crate::kind::Kind;
use crate::locks::Locks;
use crate::name::Name;
use crate::owner::Owner;
use crate::shared::Shared;
use crate::waiting::fair_queue_ticket::FairQueueTicket;
use crate::waiting::patience::{Patience, Tried};
use crate::waiting::wakeups::{Wakeup, subscribe};

const OPERATION: &str = "acquire";

#[derive(Debug, Clone)]
pub(crate) struct Acquirer {
    pub(crate) locks: Locks,
    pub(crate) name: Name,
    pub(crate) kind: Kind,
    /// A fixed lease, or `None` for renewal by the watchdog.
    pub(crate) lease: Option<Duration>,
}

enum Attempt {
    Acquired(RawGuard),
    /// Another owner holds it for so many milliseconds; negative: without expiry.
    Held(i64),
}

struct Failed {
    error: Error,
    in_doubt: Option<InDoubt>,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self { error, in_doubt: None }
    }
}

/// A try without an answer: dropped, it releases in the background what the server may have granted.
struct InDoubt {
    shared: Arc<Shared>,
    request: LockRequest,
    /// Until when it may be granted.
    until: Instant,
    /// Keeps the entry, which knows which releases were not answered.
    _entry: Arc<Entry>,
    armed: bool,
}

impl InDoubt {
    /// The owner holds the lock, or a later try is in doubt as well.
    fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for InDoubt {
    fn drop(&mut self) {
        if self.armed {
            let job = reconcile(&self.shared, &self.request, self.until);
            self.shared.cleanup.spawn(job);
        }
    }
}

/// The tries of one waiting call. A try without an answer is repeated: what the server may have granted
/// meanwhile is not released, since the next try finds it.
struct Tries<'a> {
    acquirer: &'a Acquirer,
    request: &'a LockRequest,
    queue_timeout: Option<Duration>,
    patience: Patience,
    in_doubt: Option<InDoubt>,
}

impl Tries<'_> {
    /// As the field, but not past the deadline: then the ticket is void, whether or not the queue has
    /// been told that the waiter has left.
    fn queue_timeout(&self) -> Option<Duration> {
        let left = self.patience.deadline().saturating_duration_since(Instant::now());
        Some(self.queue_timeout?.min(left).max(Duration::from_millis(1)))
    }

    async fn next(&mut self) -> Result<Tried<Attempt>, Error> {
        let attempt = self.acquirer.attempt(self.request, self.queue_timeout());
        let in_doubt = &mut self.in_doubt;
        let attempt = async {
            let (answer, now_in_doubt) = match attempt.await {
                Ok(Attempt::Acquired(guard)) => (Ok(Attempt::Acquired(guard)), None),
                Err(Failed { error, in_doubt: Some(in_doubt) }) => (Err(error), Some(in_doubt)),
                Ok(held) => return Ok(held),
                Err(Failed { error, .. }) => return Err(error),
            };
            // A later try has decided what was in doubt before.
            if let Some(decided) = std::mem::replace(in_doubt, now_in_doubt) {
                decided.disarm();
            }
            answer
        };
        self.patience.attempt(attempt).await
    }
}

impl Acquirer {
    pub(crate) fn request(&self, owner: &Owner) -> LockRequest {
        LockRequest { name: self.name.clone(), kind: self.kind, owner: *owner }
    }

    /// One try, without waiting or queueing.
    pub(crate) async fn try_acquire(&self, owner: &Owner) -> Result<Option<RawGuard>, Error> {
        let started = Instant::now();
        let result = match self.attempt(&self.request(owner), None).await {
            Ok(Attempt::Acquired(guard)) => Ok(Some(guard)),
            Ok(Attempt::Held(_)) => Ok(None),
            Err(failed) => Err(failed.error),
        };
        let counters = self.locks.shared().counters.of(self.kind);
        counters.acquired(&result, started.elapsed(), false);
        result
    }

    /// Acquire the lock, waiting for it no longer than `limit`.
    pub(crate) async fn acquire(
        &self,
        owner: &Owner,
        limit: Duration,
    ) -> Result<Option<RawGuard>, Error> {
        let started = Instant::now();
        let result = self.locks.shared().unless_closed(self.wait(owner, limit)).await;
        let counters = self.locks.shared().counters.of(self.kind);
        counters.acquired(&result, started.elapsed(), true);
        result
    }

    /// Try, subscribe, try again, sleep until a message or the end of the holder's lease, repeat.
    /// The second try closes the gap before the subscription; from then on each try is made with the
    /// next message already awaited, so that none is missed between a try and the sleep. Without a
    /// subscription it polls; without an answer it tries again.
    async fn wait(&self, owner: &Owner, limit: Duration) -> Result<Option<RawGuard>, Error> {
        let (shared, request) = (self.locks.shared(), &self.request(owner));
        // Only a fair lock has a queue, in which a waiter has to show that it is alive.
        let (ticket, longest_sleep) = match self.kind {
            Kind::Fair => (Some(FairQueueTicket::new(shared, request)), shared.config.lease / 3),
            _ => (None, shared.config.lease),
        };
        let queue_timeout = ticket.is_some().then_some(shared.config.lease);
        let patience = Patience::new(&shared.config, limit);
        let mut tries = Tries { acquirer: self, request, queue_timeout, patience, in_doubt: None };
        if let Tried::Answered(Attempt::Acquired(guard)) = tries.next().await? {
            return Ok(Some(guard));
        }
        let _waiting = shared.counters.of(self.kind).waiting();
        let channel = request.channel();
        let end = tries.patience.end();
        let subscription = subscribe(&shared.wakeups, &channel, &shared.config, end).await;
        let mut wakeup = Wakeup::none();
        // The end may have been reached while it subscribed.
        while !tries.patience.is_over() {
            let mut message = pin!(subscription.message());
            message.as_mut().enable();
            let sleep = match tries.next().await? {
                Tried::Answered(Attempt::Acquired(guard)) => {
                    wakeup.mark_used();
                    return Ok(Some(guard));
                }
                Tried::Answered(Attempt::Held(pttl)) => {
                    wakeup.mark_used();
                    // A key without expiry is tried once per lease: it may not be a lock.
                    u64::try_from(pttl).map_or(longest_sleep, Duration::from_millis)
                }
                // It keeps its wake-up, if it has one, for the next try.
                Tried::Unanswered(pause) => pause,
            };
            let longest = if subscription.is_confirmed() {
                longest_sleep
            } else {
                longest_sleep.min(shared.config.poll_interval)
            };
            let sleep = sleep.min(longest).max(Duration::from_millis(1));
            tokio::select! {
                () = &mut message => wakeup = subscription.wakeup(),
                () = tries.patience.sleep_until(Instant::now() + sleep) => {}
            }
        }
        tries.patience.timed_out()
    }

    /// One try, finished in the background if the caller's future is dropped.
    async fn attempt(
        &self,
        request: &LockRequest,
        queue_timeout: Option<Duration>,
    ) -> Result<Attempt, Failed> {
        let work = attempt(self.locks.clone(), request.clone(), self.lease, queue_timeout);
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
) -> Result<Attempt, Failed> {
    let shared = locks.shared().clone();
    shared.check_open()?;
    request.name.check()?;
    let entry = shared.registry.enter(&request);
    let timeout = shared.connection.timeout();
    let Ok(command) = tokio::time::timeout(timeout, entry.command_lock.lock()).await else {
        let cause = "another operation of this owner is still under way".into();
        return Err(Error::Unavailable { operation: OPERATION, cause }.into());
    };
    let wanted = shared.config.capped(fixed_lease.unwrap_or(shared.config.lease));
    loop {
        let sent = Instant::now();
        let current = entry.live();
        if let Some(held) = conflicting_kind(&locks, &request, current.as_deref()) {
            return Err(Error::OtherKind { held, wanted: request.kind }.into());
        }
        let (depth, lease) =
            current.as_ref().map_or((1, wanted), |hold| hold.next(wanted, Instant::now()));
        let reply =
            shared.connection.acquire(&request, lease, depth, queue_timeout, &entry.latches).await;
        let failure = match (reply, current) {
            (Ok(AcquireReply::Held(pttl)), None) => return Ok(Attempt::Held(pttl)),
            (Ok(AcquireReply::Held(pttl)), Some(hold)) => {
                // The hold to re-enter is gone: report it, and try a first acquire.
                let reason = if pttl == -2 { LostReason::Expired } else { LostReason::Taken };
                end_lost_hold(&shared, &hold, reason);
                continue;
            }
            // This future was not polled for so long that the lease is over before it began.
            (Ok(AcquireReply::Acquired { .. }), _) if Instant::now() >= sent + lease => {
                Failure::Unknown("the answer was read after the lease had ended".into())
            }
            (Ok(AcquireReply::Acquired { fence }), current) => {
                let renew = fixed_lease.is_none();
                let hold = current.unwrap_or_else(|| {
                    let (id, config) = (shared.next_id(), &shared.config);
                    let hold = Hold::new(id, request.clone(), fence, lease, renew, config);
                    let hold = Arc::new(hold);
                    entry.set(hold.clone());
                    shared.counters.of(request.kind).hold_started();
                    hold
                });
                // The hold ended while its re-entry was under way: try a first acquire.
                let Some((check_at, guard)) = hold.acquired(sent, lease, renew) else { continue };
                shared.renewals.insert(&hold, check_at);
                drop(command);
                return Ok(Attempt::Acquired(RawGuard::new(Held::new(locks, entry, hold, guard))));
            }
            (Err(failure), _) => failure,
        };
        let in_doubt = matches!(failure, Failure::Unknown(_)).then(|| InDoubt {
            until: Instant::now() + lease,
            shared,
            request,
            _entry: entry.clone(),
            armed: true,
        });
        return Err(Failed { error: failure.into_unavailable(OPERATION), in_doubt });
    }
}

/// The kind as which the owner holds this lock, if that rules out acquiring it as requested.
fn conflicting_kind(locks: &Locks, request: &LockRequest, current: Option<&Hold>) -> Option<Kind> {
    if let Some(hold) = current {
        return Some(hold.request.kind).filter(|held| *held != request.kind);
    }
    let other = locks.shared().registry.other_side(request)?.request.kind;
    // A writer may read as well, and go on reading after it has stopped writing. Not the reverse.
    (!(request.kind == Kind::Read && other == Kind::Write)).then_some(other)
}
