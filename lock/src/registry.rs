//! Which (lock, owner) pairs this process has business with. Memory only.
//!
//! A pair stands for one field of the lock's hash: who reads and writes under one read-write lock
//! has two. Ways of holding that share a field (reentrant, fenced, fair, read) share the entry, so
//! that mixing them for one owner is noticed instead of counted wrongly.
//!
//! An entry exists while a guard, an operation or a clean-up refers to it, and it lets one command
//! per pair travel at a time: that is what makes an absolute depth on the wire right, and what
//! keeps a clean-up from overtaking the acquire it cleans up.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::ops::Deref;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Owner;
use super::claim::Claim;
use super::hold::Hold;
use super::kind::Kind;
use super::name::LockName;

/// The lock, the owner, and whether the field is the writer's.
type Key = (LockName, Owner, bool);

/// All entries of one process and Redis.
#[derive(Default)]
pub(super) struct Registry {
    entries: Mutex<HashMap<Key, (Arc<Entry>, usize)>>,
}

/// One lock and one owner.
pub(super) struct Entry {
    key: Key,
    /// Held while a command for this pair is on its way.
    pub(super) turn: tokio::sync::Mutex<()>,
    hold: Mutex<Option<Arc<Hold>>>,
    /// How many calls of this owner have a place in the lock's queue: they share one there.
    pub(super) queued: AtomicUsize,
}

/// A counted reference to an entry; the entry goes with the last one.
pub(super) struct EntryRef {
    registry: Arc<Registry>,
    entry: Arc<Entry>,
}

impl Registry {
    /// The entry of this pair, made if need be.
    pub(super) fn enter(self: &Arc<Self>, claim: &Claim) -> EntryRef {
        self.enter_key((claim.name.clone(), claim.owner, claim.kind == Kind::Write))
    }

    /// What the owner holds live in the other way of a read-write lock.
    pub(super) fn other_side(&self, claim: &Claim) -> Option<Arc<Hold>> {
        let key = (claim.name.clone(), claim.owner, claim.kind != Kind::Write);
        let entry = self.entries().get(&key).map(|(entry, _)| entry.clone())?;
        entry.live()
    }

    fn enter_key(self: &Arc<Self>, key: Key) -> EntryRef {
        let mut entries = self.entries();
        let entry = match entries.entry(key.clone()) {
            Slot::Occupied(mut slot) => {
                let (entry, count) = slot.get_mut();
                *count += 1;
                entry.clone()
            }
            Slot::Vacant(slot) => {
                let entry = Arc::new(Entry {
                    key,
                    turn: tokio::sync::Mutex::new(()),
                    hold: Mutex::new(None),
                    queued: AtomicUsize::new(0),
                });
                slot.insert((entry.clone(), 1));
                entry
            }
        };
        drop(entries);
        EntryRef { registry: self.clone(), entry }
    }

    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.entries().len()
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<Key, (Arc<Entry>, usize)>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    /// The hold that is live now.
    pub(super) fn live(&self) -> Option<Arc<Hold>> {
        self.slot().as_ref().filter(|hold| hold.is_live()).cloned()
    }

    /// Make `hold` the current one.
    pub(super) fn begin(&self, hold: Arc<Hold>) {
        *self.slot() = Some(hold);
    }

    fn slot(&self) -> MutexGuard<'_, Option<Arc<Hold>>> {
        self.hold.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clone for EntryRef {
    fn clone(&self) -> Self {
        self.registry.enter_key(self.entry.key.clone())
    }
}

impl Deref for EntryRef {
    type Target = Entry;

    fn deref(&self) -> &Entry {
        &self.entry
    }
}

impl Drop for EntryRef {
    fn drop(&mut self) {
        let mut entries = self.registry.entries();
        if let Slot::Occupied(mut slot) = entries.entry(self.entry.key.clone()) {
            slot.get_mut().1 -= 1;
            if slot.get().1 == 0 {
                slot.remove();
            }
        }
    }
}
