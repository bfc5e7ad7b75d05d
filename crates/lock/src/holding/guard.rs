//! Guards: what a caller holds, how it is released, and how its loss is noticed.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::commands::lock::RenewReply;
use crate::config::clamp_lease;
use crate::connection::failure::Failure;
use crate::error::{Error, Lost, LostReason};
use crate::holding::armed::{Armed, Release};
use crate::kind::{Fenced, Kind, LockKind, Reentrant};
use crate::locks::Locks;
use crate::owner::Owner;
use crate::state::hold::{self, Hold};
use crate::state::registry::Entry;
use crate::state::shared::Shared;
use crate::tasks::reconcile::{end_lost_hold, reconcile};

/// One acquire of a [`Lock`](crate::Lock).
///
/// [`release`](Self::release) releases it and reports the outcome. Dropping the guard releases it in
/// the background, without blocking, and also outside a runtime.
#[must_use = "dropping the guard releases the lock"]
pub struct Guard<K: LockKind = Reentrant> {
    raw: RawGuard,
    kind: PhantomData<K>,
}

/// A guard without its kind as a type.
pub(crate) type RawGuard = Armed<Held>;

#[derive(Clone)]
pub(crate) struct Held {
    locks: Locks,
    entry: Arc<Entry>,
    hold: Arc<Hold>,
    /// Its id among the guards of the hold.
    id: u32,
}

impl Held {
    pub(crate) fn new(locks: Locks, entry: Arc<Entry>, hold: Arc<Hold>, id: u32) -> Self {
        Self {
            locks,
            entry,
            hold,
            id,
        }
    }
}

impl Release for Held {
    fn locks(&self) -> &Locks {
        &self.locks
    }

    fn name(&self) -> &str {
        self.hold.request.name.key()
    }

    async fn release(self) -> Result<(), Error> {
        release(self).await
    }
}

impl Guard<Fenced> {
    /// The fencing token: higher than that of every earlier holder, and at least 1. Send it to the
    /// protected resource with each write; the resource refuses tokens lower than the highest it
    /// has seen.
    pub fn fence(&self) -> u64 {
        self.raw.held.hold.fence
    }
}

impl<K: LockKind> Guard<K> {
    pub(crate) fn new(raw: RawGuard) -> Self {
        Self {
            raw,
            kind: PhantomData,
        }
    }

    /// Release this acquire. With the last guard of the owner the key is deleted and a waiter is
    /// notified.
    ///
    /// # Cancellation
    /// Once polled, it is finished in the background even if the future is dropped.
    ///
    /// # Errors
    /// [`Error::Lost`] when the lock was lost before, its lease has ended, or the server says that this
    /// owner no longer holds it; nothing was changed there. [`Error::Unavailable`] or
    /// [`Error::Unknown`] when Redis was not reached or did not answer: the release is repeated in the
    /// background until it succeeds or the lease has ended.
    ///
    /// `Ok` means that this owner held the lock until now. One exception: when the server's reply
    /// was lost within the lease, the lease is relied upon, so that neither a forced unlock nor lost
    /// data at that moment is noticed.
    pub async fn release(self) -> Result<(), Error> {
        self.raw.release().await
    }

    /// Wait until the lock is lost: its key is gone, another owner holds it, or no renewal was confirmed
    /// within the lease. Never ends if the lock is released in time. The future is independent of the
    /// guard.
    ///
    /// A lock that is taken away is found by the next renewal, a third of the lease later at the most; of a
    /// lock with a fixed lease, by its end.
    pub fn lost(&self) -> impl Future<Output = LostReason> + Send + use<K> {
        let hold = self.raw.held.hold.clone();
        async move { hold.lost().await }
    }

    /// Run `work` as long as the lock is held: its output, or [`Lost`] as soon as the lock is
    /// [lost](Self::lost); `work` is dropped then, which ends it at the `await` where it is. The lock is
    /// not released. `Ok` means that the lease had not ended when the work was done.
    ///
    /// Work that has a `Result` has two: `guard.run(work).await??`, where the second `?` is the work's own.
    ///
    /// Work that blocks its thread cannot be ended, and on a runtime with no other thread nothing is renewed
    /// meanwhile: past the lease it ends as [`Lost`]. Move it to `tokio::task::spawn_blocking`.
    ///
    /// # Cancellation
    /// Dropping the future drops `work`.
    ///
    /// # Errors
    /// [`Lost`].
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Lost> {
        let output = unless_lost(self.lost(), work).await?;
        match self.hold().lost_reason() {
            Some(reason) => Err(Lost(reason)),
            None => Ok(output),
        }
    }

    /// Let the lease last for `lease` from now at least: of a lock [without
    /// renewal](crate::Lock::without_renewal) whose work takes longer than was thought. Never shortens it.
    ///
    /// # Cancellation
    /// Dropped, the lease may have been extended on the server, which this process does not count on then.
    ///
    /// # Errors
    /// [`Error::Lost`] when the lock was lost. [`Error::Unavailable`], [`Error::Unknown`] or
    /// [`Error::Rejected`]: it is held for as long as before.
    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        let Held { locks, hold, .. } = &self.raw.held;
        locks.ensure_running();
        if let Some(reason) = hold.lost_reason() {
            return Err(Error::Lost(reason));
        }
        let shared = locks.shared();
        let lease = clamp_lease(lease);
        let sent = Instant::now();
        let timeout = shared.connection.timeout();
        let remaining_lease = hold.valid_for();
        let reply = shared
            .connection
            .renew(&hold.request, lease, timeout, remaining_lease)
            .await;
        match reply.map_err(|failure| failure.into_error("extend"))? {
            RenewReply::Renewed | RenewReply::Shortened(_) => {
                hold.confirmed(sent, lease);
                // One that is renewed is checked no later for it.
                if let Some(check_at) = hold.fixed_deadline() {
                    shared.renewals.insert(hold, check_at);
                }
                Ok(())
            }
            RenewReply::Lost(reason) => {
                end_lost_hold(shared, hold, reason);
                Err(Error::Lost(reason))
            }
        }
    }

    /// A token that is cancelled when the lock is lost, for tasks that end by themselves; also at
    /// [`Locks::shutdown`], after which nothing is renewed. Not when the lock is released.
    pub fn token(&self) -> CancellationToken {
        self.locks().ensure_running();
        self.hold().token(&self.locks().shared().stop)
    }

    /// How long from now the lock is held for certain, by this machine's monotonic clock,
    /// counted from before the last confirmed command was sent. Zero once it is lost.
    pub fn valid_for(&self) -> Duration {
        self.raw.held.hold.valid_for()
    }

    pub(crate) fn locks(&self) -> &Locks {
        &self.raw.held.locks
    }

    pub(crate) fn hold(&self) -> &Hold {
        &self.raw.held.hold
    }

    /// The owner that holds it.
    pub fn owner(&self) -> &Owner {
        &self.raw.held.hold.request.owner
    }

    /// The lock's name.
    pub fn name(&self) -> &str {
        self.raw.held.hold.request.name.key()
    }
}

impl<K: LockKind> fmt::Debug for Guard<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("kind", &K::KIND)
            .field("name", &self.name())
            .field("owner", self.owner())
            .finish_non_exhaustive()
    }
}

/// Run `work`, but not past the loss of what it runs under.
pub(crate) async fn unless_lost<T>(
    lost: impl Future<Output = LostReason>,
    work: impl Future<Output = T>,
) -> Result<T, Lost> {
    tokio::select! {
        biased;
        reason = lost => Err(Lost(reason)),
        output = work => Ok(output),
    }
}

async fn release(held: Held) -> Result<(), Error> {
    let shared = held.locks.shared().clone();
    let entry = held.entry.clone();
    let timeout = shared.connection.timeout();
    let Ok(command) = tokio::time::timeout(timeout, entry.command_lock.lock()).await else {
        let cause = "another operation of this owner is still under way".into();
        let entry = entry.clone();
        shared.cleanup.spawn(async move {
            let command = entry.command_lock.lock().await;
            if let Err(error) = send_release(&held).await {
                tracing::debug!(lock = ?held.hold.request.name, %error, "late release failed");
            }
            drop(command);
        });
        return Err(Error::Unknown {
            operation: "release",
            cause,
        });
    };
    let result = send_release(&held).await;
    drop(command);
    result
}

/// The release itself; the caller holds the entry's `command_lock`.
async fn send_release(held: &Held) -> Result<(), Error> {
    let Held {
        locks,
        entry,
        hold,
        id,
    } = held;
    let shared = locks.shared();
    let request = &hold.request;
    let sent = Instant::now();
    let (depth, number, until, lease) = match hold.release(*id, sent) {
        hold::Release::Lost(reason) => {
            end_overdue_hold(shared, hold, reason, sent);
            return Err(Error::Lost(reason));
        }
        hold::Release::Send {
            depth,
            number,
            until,
            lease,
        } => (depth, number, until, lease),
    };
    if depth == 0 {
        shared.renewals.remove(hold);
        let counters = shared.counters.for_kind(request.kind);
        counters.held.record(hold.since.elapsed());
    }
    let leave_queue = depth == 0 && entry.queued.load(Ordering::Relaxed) == 0;
    let connection = &shared.connection;
    match connection
        .release(
            request,
            lease,
            depth,
            number,
            leave_queue,
            &entry.generation,
        )
        .await
    {
        // Where the server's reply was lost, the lease is what this process can rely on.
        Ok(true) => {
            schedule_check_after_release(shared, hold, sent, lease);
            Ok(())
        }
        Ok(false) => {
            // Guards that remain learn of the loss.
            end_lost_hold(shared, hold, LostReason::Expired);
            Err(Error::Lost(LostReason::Expired))
        }
        // The hold count is absolute, so the next command of this owner sends it again: whether the
        // server has executed this one makes no difference to who holds the lock.
        Err(_) if depth > 0 => {
            if request.kind == Kind::Read {
                count_on_shortest_lease(shared, hold, until);
            }
            Ok(())
        }
        Err(failure) => {
            if !matches!(failure, Failure::Rejected(_)) {
                shared
                    .cleanup
                    .spawn(reconcile(shared, request, hold.deadline()));
            }
            Err(failure.into_error("release"))
        }
    }
}

/// End a hold of which a released guard has found that its deadline has passed.
fn end_overdue_hold(shared: &Arc<Shared>, hold: &Arc<Hold>, reason: LostReason, sent: Instant) {
    if hold.is_live() {
        end_lost_hold(shared, hold, reason);
        // The server counts from a little later, and may still have the key.
        shared.cleanup.spawn(reconcile(shared, &hold.request, sent));
    }
}

/// Count on the shortest lease, after the release of one of several read holds was not answered. That hold lasted
/// until `ended`.
fn count_on_shortest_lease(shared: &Shared, hold: &Arc<Hold>, ended: Instant) {
    hold.read_release_in_doubt(ended);
    if let Some(check_at) = hold.fixed_deadline() {
        shared.renewals.insert(hold, check_at);
    }
}

/// Schedule the next check of a hold that has further guards, after a release that was confirmed.
fn schedule_check_after_release(shared: &Shared, hold: &Arc<Hold>, sent: Instant, lease: Duration) {
    // The other holds of a reader keep the leases they have.
    let check_at = match hold.request.kind {
        Kind::Read => hold.fixed_deadline(),
        _ => hold.confirmed(sent, lease),
    };
    if let Some(check_at) = check_at {
        shared.renewals.insert(hold, check_at);
    }
}
