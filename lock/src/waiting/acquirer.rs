//! Acquires a lock of any [`Kind`], and waits for it: the wait loop.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::cleanup::reconcile::{end_lost_hold, reconcile};
use crate::commands::lock::AcquireReply;
use crate::connection::command_connection::CommandConnection;
use crate::connection::failure::Failure;
use crate::error::{Error, LostReason};
use crate::holding::guard::RawGuard;
use crate::holding::hold::Hold;
use crate::holding::request::LockRequest;
use crate::kind::Kind;
use crate::locks::Locks;
use crate::name::LockName;
use crate::owner::Owner;
use crate::waiting::deadline::{earlier, until};
use crate::waiting::fair_queue_ticket::FairQueueTicket;
use crate::waiting::wakeups::{Wakeup, subscribe};

const OPERATION: &str = "acquire";

/// What is needed to acquire a lock.
#[derive(Clone)]
pub(crate) struct Acquirer {
    pub(crate) locks: Locks,
    pub(crate) name: LockName,
    pub(crate) kind: Kind,
    /// A fixed lease, or `None` for renewal by the watchdog.
    pub(crate) lease: Option<Duration>,
}

/// How one try ended.
enum Attempt {
    Acquired(RawGuard),
    /// Another owner holds it for so many milliseconds; negative: without expiry.
    Held(i64),
}

impl Acquirer {
    pub(crate) fn connection(&self) -> &CommandConnection {
        &self.locks.shared().connection
    }

    pub(crate) fn request(&self, owner: &Owner) -> LockRequest {
        LockRequest { name: self.name.clone(), kind: self.kind, owner: *owner }
    }

    /// One try, without waiting or queueing.
    pub(crate) async fn try_acquire(&self, owner: &Owner) -> Result<Option<RawGuard>, Error> {
        let started = Instant::now();
        let result = self.attempt(&self.request(owner), None).await.map(|attempt| match attempt {
            Attempt::Acquired(guard) => Some(guard),
            Attempt::Held(_) => None,
        });
        let counters = self.locks.shared().counters.of(self.kind);
        counters.acquired(&result, started.elapsed(), false);
        result
    }

    /// Acquire the lock, waiting for it until the deadline.
    pub(crate) async fn acquire(
        &self,
        owner: &Owner,
        deadline: Option<Instant>,
    ) -> Result<Option<RawGuard>, Error> {
        let started = Instant::now();
        let result = self.wait(owner, deadline).await;
        let counters = self.locks.shared().counters.of(self.kind);
        counters.acquired(&result, started.elapsed(), true);
        result
    }

    /// Try, subscribe, try again, sleep until a message or the end of the holder's lease, repeat.
    /// The second try closes the gap before the subscription; from then on each try is made with the
    /// next message already awaited, so that none is missed between a try and the sleep.
    async fn wait(
        &self,
        owner: &Owner,
        deadline: Option<Instant>,
    ) -> Result<Option<RawGuard>, Error> {
        let shared = self.locks.shared();
        let request = self.request(owner);
        // Only a fair lock has a queue, in which a waiter has to show that it is alive.
        let (ticket, longest_sleep) = match self.kind {
            Kind::Fair => (Some(FairQueueTicket::new(shared, &request)), shared.config.lease / 3),
            _ => (None, shared.config.lease),
        };
        let queue_timeout = ticket.is_some().then_some(shared.config.lease);
        let attempt = || until(deadline, OPERATION, self.attempt(&request, queue_timeout));
        if let Attempt::Acquired(guard) = attempt().await? {
            return Ok(Some(guard));
        }
        let channel = request.channel();
        let subscription = subscribe(&shared.wakeups, &channel, &shared.config, deadline).await?;
        let mut wakeup = Wakeup::none();
        loop {
            let mut message = pin!(subscription.message());
            message.as_mut().enable();
            let result = attempt().await?;
            wakeup.mark_used();
            let pttl = match result {
                Attempt::Acquired(guard) => return Ok(Some(guard)),
                Attempt::Held(pttl) => pttl,
            };
            // A key without expiry is tried once per lease: it may not be a lock.
            let sleep = u64::try_from(pttl).map_or(longest_sleep, Duration::from_millis);
            let sleep = sleep.clamp(Duration::from_millis(1), longest_sleep);
            tokio::select! {
                () = &mut message => wakeup = subscription.wakeup(),
                () = sleep_until(earlier(Instant::now() + sleep, deadline)) => {}
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(None);
            }
        }
    }

    /// One try, finished in the background if the caller's future is dropped.
    async fn attempt(
        &self,
        request: &LockRequest,
        queue_timeout: Option<Duration>,
    ) -> Result<Attempt, Error> {
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
) -> Result<Attempt, Error> {
    let shared = locks.shared().clone();
    shared.check_open()?;
    let entry = shared.registry.enter(&request);
    let timeout = shared.connection.timeout();
    let Ok(command) = tokio::time::timeout(timeout, entry.command_lock.lock()).await else {
        let cause = "another operation of this owner is still under way".to_owned();
        return Err(Error::Unavailable { operation: OPERATION, cause });
    };
    let wanted = fixed_lease.unwrap_or(shared.config.lease);
    loop {
        let sent = Instant::now();
        let current = entry.live();
        if let Some(held) = conflicting_kind(&locks, &request, current.as_deref()) {
            return Err(Error::OtherKind { held, wanted: request.kind });
        }
        let (depth, lease) = current.as_ref().map_or((1, wanted), |hold| hold.next(wanted, sent));
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
                Failure::Unknown("the answer was read after the lease had ended".to_owned())
            }
            (Ok(AcquireReply::Acquired { fence }), current) => {
                let renew = fixed_lease.is_none();
                let hold = current.unwrap_or_else(|| {
                    let hold = Hold::new(shared.next_id(), request.clone(), fence, lease, renew);
                    let hold = Arc::new(hold);
                    entry.set(hold.clone());
                    shared.counters.of(request.kind).hold_started();
                    hold
                });
                // The hold ended while its re-entry was under way: try a first acquire.
                let Some(check_at) = hold.acquired(sent, lease, renew) else { continue };
                shared.renewals.insert(&hold, check_at);
                drop(command);
                return Ok(Attempt::Acquired(RawGuard::new(locks, entry, hold)));
            }
            (Err(failure), _) => failure,
        };
        if matches!(failure, Failure::Unknown(_)) {
            let until = Instant::now() + lease;
            shared.cleanup.spawn(reconcile(&shared, &request, until));
        }
        return Err(failure.into_unavailable(OPERATION));
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
