//! The registry of (lock, owner) pairs that this process holds, acquires or cleans up.
//!
//! A pair stands for one field of the lock's hash: an owner that reads and writes under one
//! read-write lock has two. Kinds that share a field (reentrant, fenced, fair, read) share the
//! entry, so that mixing them for one owner is noticed instead of counted wrongly.
//!
//! An entry exists while a guard, an operation or a clean-up refers to it. It lets only one command
//! of its pair be under way at a time. Otherwise an absolute hold count on the wire could be wrong, and
//! a clean-up could overtake the acquire that it cleans up.

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::commands::generation::Generation;
use crate::kind::Kind;
use crate::name::Name;
use crate::owner::Owner;
use crate::request::LockRequest;
use crate::state::hold::Hold;

/// The lock, the owner, and whether the field is the writer's.
type Key = (Name, Owner, bool);

#[derive(Default)]
pub(crate) struct Registry {
    entries: Mutex<HashMap<Key, Weak<Entry>>>,
}

/// One lock and one owner; leaves the registry with its last reference.
pub(crate) struct Entry {
    key: Key,
    registry: Arc<Registry>,
    /// Held while a command for this pair is under way.
    pub(crate) command_lock: tokio::sync::Mutex<()>,
    hold: Mutex<Option<Arc<Hold>>>,
    /// How many calls of this owner wait in the queue of a fair lock: there they share one position.
    pub(crate) queued: AtomicUsize,
    pub(crate) generation: Generation,
}

impl Registry {
    /// The entry of this pair, created if it does not exist.
    pub(crate) fn enter(self: &Arc<Self>, request: &LockRequest) -> Arc<Entry> {
        let key = (
            request.name.clone(),
            request.owner,
            request.kind == Kind::Write,
        );
        let mut entries = self.entries();
        if let Some(entry) = entries.get(&key).and_then(Weak::upgrade) {
            return entry;
        }
        let entry = Arc::new(Entry {
            key: key.clone(),
            registry: self.clone(),
            command_lock: tokio::sync::Mutex::new(()),
            hold: Mutex::new(None),
            queued: AtomicUsize::new(0),
            generation: Generation::new(&request.name, &request.field()),
        });
        entries.insert(key, Arc::downgrade(&entry));
        entry
    }

    /// The owner's live hold of the other side of a read-write lock.
    pub(crate) fn other_side(&self, request: &LockRequest) -> Option<Arc<Hold>> {
        let key = (
            request.name.clone(),
            request.owner,
            request.kind != Kind::Write,
        );
        // The entry may be dropped here, which locks the table: so the table is not locked any more.
        let entry = self.entries().get(&key)?.upgrade();
        entry?.live()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries().len()
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<Key, Weak<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    pub(crate) fn live(&self) -> Option<Arc<Hold>> {
        self.hold().as_ref().filter(|hold| hold.is_live()).cloned()
    }

    pub(crate) fn set(&self, hold: Arc<Hold>) {
        *self.hold() = Some(hold);
    }

    fn hold(&self) -> MutexGuard<'_, Option<Arc<Hold>>> {
        self.hold.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut entries = self.registry.entries();
        // By now there may be a new entry for the pair.
        if entries
            .get(&self.key)
            .is_some_and(|entry| entry.strong_count() == 0)
        {
            entries.remove(&self.key);
        }
    }
}
