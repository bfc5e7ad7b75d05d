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
    /// The guard's id among those of the hold.
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
    /// background until it succeeds or the lease has ended. [`Error::Rejected`] when Redis refused the
    /// command or the login; after a refused login the release is repeated as well.
    ///
    /// `Ok` means that this owner held the lock until now. One exception: when the server's reply
    /// was lost within the lease, this process relies on the lease. It then does not notice a forced
    /// unlock, or lost data, at that moment.
    pub async fn release(self) -> Result<(), Error> {
        self.raw.release().await
    }

    /// Wait until the lock is lost: its key is gone, another owner holds it, or no renewal was confirmed
    /// within the lease. Never ends if the lock is released in time. The future is independent of the
    /// guard.
    ///
    /// That a lock was taken away is noticed at the next renewal, a third of the lease later at the most;
    /// with a fixed lease, at the lease's end.
    pub fn lost(&self) -> impl Future<Output = LostReason> + Send + use<K> {
        let hold = self.raw.held.hold.clone();
        async move { hold.lost().await }
    }

    /// Run `work` as long as the lock is held. Returns its output, or [`Lost`] as soon as the lock is
    /// [lost](Self::lost); then `work` is dropped, which ends it at the `await` where it is. The lock is
    /// not released. `Ok` means that the lease had not ended when the work was done.
    ///
    /// If the work returns a `Result`, there are two: in `guard.run(work).await??`, the second `?` is for
    /// the work's own.
    ///
    /// Work that blocks its thread cannot be stopped, and on a runtime with no other thread nothing is
    /// renewed meanwhile. If it takes longer than the lease, the result is [`Lost`]. Move it to
    /// `tokio::task::spawn_blocking`.
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

    /// Extend the lease to at least `lease` from now: for a lock [without
    /// renewal](crate::Lock::without_renewal) whose work takes longer than expected. Never shortens it.
    ///
    /// # Cancellation
    /// When the future is dropped, the lease may be extended on the server; this process does not count
    /// on it.
    ///
    /// # Errors
    /// [`Error::Lost`] when the lock was lost. After [`Error::Unavailable`], [`Error::Unknown`] or
    /// [`Error::Rejected`], the lock is held for as long as before.
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
                // A hold that the watchdog renews keeps its next check.
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

    /// A token for tasks that end by themselves. It is cancelled when the lock is lost, and at
    /// [`Locks::shutdown`], after which nothing is renewed. It is not cancelled when the lock is released.
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

/// Run `work` until it is done, or until `lost` ends.
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
    let (depth, hold_number, lease_end, lease) = match hold.release(*id, sent) {
        hold::Release::Lost(reason) => {
            end_overdue_hold(shared, hold, reason, sent);
            return Err(Error::Lost(reason));
        }
        hold::Release::Send {
            depth,
            hold_number,
            lease_end,
            lease,
        } => (depth, hold_number, lease_end, lease),
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
            hold_number,
            leave_queue,
            &entry.generation,
        )
        .await
    {
        // Also when the first reply was lost and the key is gone by now: this process relies on the lease.
        Ok(true) => {
            schedule_check_after_release(shared, hold, sent, lease);
            Ok(())
        }
        Ok(false) => {
            // So that the guards that remain learn of the loss.
            end_lost_hold(shared, hold, LostReason::Expired);
            Err(Error::Lost(LostReason::Expired))
        }
        // The hold count is absolute, so the next command of this owner sends it again: whether the
        // server has executed this one makes no difference to who holds the lock.
        Err(_) if depth > 0 => {
            if request.kind == Kind::Read {
                count_on_shortest_lease(shared, hold, lease_end);
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

/// End a hold whose deadline has passed, as the release of one of its guards has found.
fn end_overdue_hold(shared: &Arc<Shared>, hold: &Arc<Hold>, reason: LostReason, sent: Instant) {
    if hold.is_live() {
        end_lost_hold(shared, hold, reason);
        // The lease began a little later on the server, which may still have the key.
        shared.cleanup.spawn(reconcile(shared, &hold.request, sent));
    }
}

/// Count on the shortest lease, after the release of one of several read holds was not answered. The
/// lease of that hold ends at `lease_end`.
fn count_on_shortest_lease(shared: &Shared, hold: &Arc<Hold>, lease_end: Instant) {
    hold.read_release_in_doubt(lease_end);
    if let Some(check_at) = hold.fixed_deadline() {
        shared.renewals.insert(hold, check_at);
    }
}

/// After a release that was confirmed: schedule the next check of the hold if it has further guards.
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
