//! What is held: the guard of a lock. Giving it back, and noticing that it is lost.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::commands::Given;
use super::conn::Failure;
use super::hold::{Hold, Leave};
use super::kind::{Fenced, Member, Reentrant};
use super::locks::Locks;
use super::registry::EntryRef;
use super::settle::settle;
use super::{Error, LostReason, Owner};

/// One acquire of a [`Lock`](super::Lock), to be given back.
///
/// [`release`](Self::release) gives it back and says whether that worked. Dropping the guard gives
/// it back in the background, without blocking, and also where no runtime is.
#[must_use = "dropping the guard gives the lock back"]
pub struct Guard<M: Member = Reentrant> {
    grip: Grip,
    member: PhantomData<M>,
}

/// A guard before anybody asks which member of the family it is of.
pub(super) struct Grip {
    locks: Locks,
    entry: EntryRef,
    hold: Arc<Hold>,
    /// Whether dropping has something to give back.
    armed: bool,
}

impl Grip {
    pub(super) fn new(locks: Locks, entry: EntryRef, hold: Arc<Hold>) -> Self {
        Self { locks, entry, hold, armed: true }
    }
}

impl Guard<Fenced> {
    /// The number that came with the lock: higher than that of every holder before. To be handed
    /// to the guarded resource with each write, which refuses what is lower than the highest it
    /// has seen. At least 1.
    pub fn fence(&self) -> u64 {
        self.grip.hold.fence
    }
}

impl<M: Member> Guard<M> {
    pub(super) fn new(grip: Grip) -> Self {
        Self { grip, member: PhantomData }
    }

    /// Give this acquire back. The key goes with the last guard of its owner, and a waiter is told.
    /// Once begun, it is finished even if the future is dropped.
    ///
    /// # Errors
    /// [`Error::Lost`] when the loss was noticed before; [`Error::NotHeld`] when the server says
    /// that the lock is no longer this owner's; in both cases nothing was changed there.
    /// [`Error::Unavailable`] or [`Error::Unknown`] when Redis could not be told or did not answer:
    /// the release is repeated in the background until it succeeds or the lease has ended.
    ///
    /// `Ok` says that the lock was this owner's until now. One exception: when the server's reply
    /// was lost within the lease, that is believed by the lease, so that neither a forced unlock
    /// nor lost data of that very moment is noticed.
    pub async fn release(self) -> Result<(), Error> {
        let mut grip = self.grip;
        grip.armed = false;
        let (locks, entry, hold) = (grip.locks.clone(), grip.entry.clone(), grip.hold.clone());
        drop(grip);
        let janitor = locks.shared().janitor.clone();
        janitor.finish(release(locks, entry, hold)).await
    }

    /// Wait until the lock can no longer be believed: its key is gone, somebody else has it, or no
    /// renewal was confirmed within the lease. Never ends if the lock is given back in time. The
    /// future is independent of the guard.
    pub fn lost(&self) -> impl Future<Output = LostReason> + Send + use<M> {
        let hold = self.grip.hold.clone();
        async move { hold.lost().await }
    }

    /// For how long from now the lock is this owner's for certain, by this machine's monotonic
    /// clock, counted from before the last confirmed command was sent. Zero once it is lost.
    pub fn valid_for(&self) -> Duration {
        self.grip.hold.valid_for()
    }

    /// Who holds it.
    pub fn owner(&self) -> &Owner {
        &self.grip.hold.claim.owner
    }

    /// The lock's name.
    pub fn name(&self) -> &str {
        self.grip.hold.claim.name.key()
    }
}

impl<M: Member> fmt::Debug for Guard<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("kind", &M::KIND)
            .field("name", &self.name())
            .field("owner", self.owner())
            .finish_non_exhaustive()
    }
}

impl Drop for Grip {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        let (locks, entry, hold) = (self.locks.clone(), self.entry.clone(), self.hold.clone());
        self.locks.shared().janitor.run(async move {
            if let Err(error) = release(locks, entry, hold.clone()).await {
                tracing::debug!(lock = ?hold.claim.name, fault = %error, "dropped lock not released at once");
            }
        });
    }
}

/// Give one acquire back.
async fn release(locks: Locks, entry: EntryRef, hold: Arc<Hold>) -> Result<(), Error> {
    const OPERATION: &str = "release";
    let shared = locks.shared().clone();
    let patience = shared.connection.timeout();
    let Ok(turn) = tokio::time::timeout(patience, entry.turn.lock()).await else {
        let cause = "another operation of this owner is still under way".to_owned();
        let (locks, entry) = (locks.clone(), entry.clone());
        shared.janitor.run(async move {
            let turn = entry.turn.lock().await;
            if let Err(error) = give_back(&locks, &entry, &hold).await {
                tracing::debug!(lock = ?hold.claim.name, fault = %error, "late release failed");
            }
            drop(turn);
        });
        return Err(Error::Unknown { operation: OPERATION, cause });
    };
    let result = give_back(&locks, &entry, &hold).await;
    drop(turn);
    result
}

/// The release itself; the caller has the entry's turn.
async fn give_back(locks: &Locks, entry: &EntryRef, hold: &Arc<Hold>) -> Result<(), Error> {
    let shared = locks.shared();
    let (depth, lease) = match hold.leave() {
        Leave::Lost(reason) => return Err(Error::Lost(reason)),
        Leave::Remaining { depth, lease } => (depth, lease),
        Leave::Last { lease } => (0, lease),
    };
    if depth == 0 {
        shared.timetable.strike(hold);
        shared.counters.of(hold.claim.kind).ended(hold.since.elapsed());
    }
    let sent = Instant::now();
    // Where the server's word is lost, the lease is what this process can go by.
    let surely_held = sent < hold.deadline();
    let claim = &hold.claim;
    let leave = depth == 0 && entry.queued.load(Ordering::Relaxed) == 0;
    match shared.connection.give(claim, lease, depth, leave).await {
        Ok(Given::Gone) if !surely_held => {
            let cause = "the reply was lost, and so may the lock have been: its lease was over";
            Err(Error::Unknown { operation: "release", cause: cause.to_owned() })
        }
        Ok(Given::Yes | Given::Gone) => {
            if let Some(look_at) = hold.confirmed(sent) {
                shared.timetable.file(hold, look_at);
            }
            Ok(())
        }
        Ok(Given::No) => {
            // With guards remaining, they are told; with none left there is nobody to tell.
            shared.lose(hold, LostReason::Expired);
            Err(Error::NotHeld)
        }
        // The depth is absolute, so the next command of this owner says the same again: whether
        // the server has heard this one makes no difference to who holds the lock.
        Err(_) if depth > 0 && surely_held => Ok(()),
        Err(failure) => {
            if depth == 0 && !matches!(failure, Failure::Rejected(_)) {
                let until = hold.deadline();
                shared.janitor.run(settle(shared.clone(), claim.clone(), until));
            }
            Err(failure.outcome("release"))
        }
    }
}
