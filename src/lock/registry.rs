//! Which (lock, owner) pairs this process has business with. Memory only.
//!
//! An entry exists while a guard, an operation or a clean-up refers to it, and it lets one command
//! per pair travel at a time: that is what makes an absolute depth on the wire right, and what
//! keeps a clean-up from overtaking the acquire it cleans up.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Owner;
use super::hold::Hold;
use super::name::LockName;

type Key = (LockName, Owner);

/// All entries of one process and Redis.
#[derive(Default)]
pub(super) struct Registry {
    entries: Mutex<HashMap<Key, (Arc<Entry>, usize)>>,
}

/// One lock and one owner.
pub(super) struct Entry {
    pub(super) name: LockName,
    pub(super) owner: Owner,
    /// Held while a command for this pair is on its way.
    pub(super) turn: tokio::sync::Mutex<()>,
    hold: Mutex<Option<Arc<Hold>>>,
}

/// A counted reference to an entry; the entry goes with the last one.
pub(super) struct EntryRef {
    registry: Arc<Registry>,
    entry: Arc<Entry>,
}

impl Registry {
    /// The entry of this pair, made if need be.
    pub(super) fn enter(self: &Arc<Self>, name: &LockName, owner: Owner) -> EntryRef {
        let mut entries = self.entries();
        let entry = match entries.entry((name.clone(), owner)) {
            Slot::Occupied(mut slot) => {
                let (entry, count) = slot.get_mut();
                *count += 1;
                entry.clone()
            }
            Slot::Vacant(slot) => {
                let entry = Arc::new(Entry {
                    name: name.clone(),
                    owner,
                    turn: tokio::sync::Mutex::new(()),
                    hold: Mutex::new(None),
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
        self.registry.enter(&self.entry.name, self.entry.owner)
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
        let key = (self.entry.name.clone(), self.entry.owner);
        if let Slot::Occupied(mut slot) = entries.entry(key) {
            slot.get_mut().1 -= 1;
            if slot.get().1 == 0 {
                slot.remove();
            }
        }
    }
}
