//! The registry of (lock, owner) pairs that this process holds, acquires or cleans up.
//!
//! A pair stands for one field of the lock's hash: an owner that reads and writes under one
//! read-write lock has two. Kinds that share a field (reentrant, fenced, fair, read) share the
//! entry, so that mixing them for one owner is noticed instead of counted wrongly.
//!
//! An entry exists while a guard, an operation or a clean-up refers to it, and it lets one command
//! per pair be under way at a time: that makes an absolute hold count on the wire right, and keeps a
//! clean-up from overtaking the acquire it cleans up.

use std::collections::HashMap;
use std::collections::hash_map;
use std::ops::Deref;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::commands::release_latch::ReleaseLatches;
use crate::holding::hold::Hold;
use crate::holding::request::LockRequest;
use crate::kind::Kind;
use crate::name::LockName;
use crate::owner::Owner;

/// The lock, the owner, and whether the field is the writer's.
type Key = (LockName, Owner, bool);

/// All entries of one process and Redis.
#[derive(Default)]
pub(crate) struct Registry {
    entries: Mutex<HashMap<Key, (Arc<Entry>, usize)>>,
}

/// One lock and one owner.
pub(crate) struct Entry {
    key: Key,
    /// Held while a command for this pair is under way.
    pub(crate) command_lock: tokio::sync::Mutex<()>,
    hold: Mutex<Option<Arc<Hold>>>,
    /// How many calls of this owner wait in the queue of a fair lock: there they share one position.
    pub(crate) queued: AtomicUsize,
    /// The latches of releases without an answer.
    pub(crate) latches: ReleaseLatches,
}

/// A counted reference to an entry; the entry is removed with the last one.
pub(crate) struct EntryRef {
    registry: Arc<Registry>,
    entry: Arc<Entry>,
}

impl Registry {
    /// The entry of this pair, created if it does not exist.
    pub(crate) fn enter(self: &Arc<Self>, request: &LockRequest) -> EntryRef {
        self.enter_key((request.name.clone(), request.owner, request.kind == Kind::Write))
    }

    /// The owner's live hold of the other side of a read-write lock.
    pub(crate) fn other_side(&self, request: &LockRequest) -> Option<Arc<Hold>> {
        let key = (request.name.clone(), request.owner, request.kind != Kind::Write);
        let entry = self.entries().get(&key).map(|(entry, _)| entry.clone())?;
        entry.live()
    }

    fn enter_key(self: &Arc<Self>, key: Key) -> EntryRef {
        let mut entries = self.entries();
        let entry = match entries.entry(key.clone()) {
            hash_map::Entry::Occupied(mut slot) => {
                let (entry, count) = slot.get_mut();
                *count += 1;
                entry.clone()
            }
            hash_map::Entry::Vacant(slot) => {
                let entry = Arc::new(Entry {
                    key,
                    command_lock: tokio::sync::Mutex::new(()),
                    hold: Mutex::new(None),
                    queued: AtomicUsize::new(0),
                    latches: ReleaseLatches::default(),
                });
                slot.insert((entry.clone(), 1));
                entry
            }
        };
        drop(entries);
        EntryRef { registry: self.clone(), entry }
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries().len()
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<Key, (Arc<Entry>, usize)>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    /// The live hold.
    pub(crate) fn live(&self) -> Option<Arc<Hold>> {
        self.hold().as_ref().filter(|hold| hold.is_live()).cloned()
    }

    /// Make `hold` the current one.
    pub(crate) fn set(&self, hold: Arc<Hold>) {
        *self.hold() = Some(hold);
    }

    fn hold(&self) -> MutexGuard<'_, Option<Arc<Hold>>> {
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
        if let hash_map::Entry::Occupied(mut slot) = entries.entry(self.entry.key.clone()) {
            slot.get_mut().1 -= 1;
            if slot.get().1 == 0 {
                slot.remove();
            }
        }
    }
}
