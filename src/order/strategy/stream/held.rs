//! What this process's consumer holds: the entries of each call of the admission script that added some and left them to
//! it. The group has gone past them, and none is pending; one record for each call says in Redis whose they are. When all
//! entries of a call are acknowledged its record ends with the last of them. No I/O may come in here.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::entry_id::EntryId;

/// The calls, by their last entry, as their records are.
#[derive(Default)]
pub(super) struct HeldCalls(Mutex<BTreeMap<EntryId, Call>>);

struct Call {
    /// Its entries that are not acknowledged, in their order.
    unacknowledged: Vec<EntryId>,
    /// Whether all of these wait in memory, or are being committed.
    in_memory: bool,
}

impl HeldCalls {
    /// Takes note of a call that added these entries, in this order, which are in memory from now on.
    pub fn hold(&self, entries: Vec<EntryId>) {
        if let Some(last) = entries.last().copied() {
            let call = Call { unacknowledged: entries, in_memory: true };
            self.0.lock().insert(last, call);
        }
    }

    /// The records that end when these entries, in their order, are acknowledged, or could have ended before.
    pub fn ending(&self, entries: &[EntryId]) -> Vec<EntryId> {
        let ends = |call: &Call| {
            call.unacknowledged.iter().all(|entry| entries.binary_search(entry).is_ok())
        };
        let calls = self.0.lock();
        calls.iter().filter(|(_, call)| ends(call)).map(|(last, _)| *last).collect()
    }

    /// Takes note that these entries are acknowledged.
    pub fn acknowledged(&self, entries: &[EntryId]) {
        let mut calls = self.0.lock();
        for entry in entries {
            if let Some((call, at)) = unacknowledged(&mut calls, *entry) {
                call.unacknowledged.remove(at);
            }
        }
    }

    /// Forgets calls whose records have ended.
    pub fn forget(&self, records: &[EntryId]) {
        let mut calls = self.0.lock();
        for record in records {
            calls.remove(record);
        }
    }

    /// Takes note that these entries are not in memory any more.
    pub fn left_memory(&self, entries: &[EntryId]) {
        let mut calls = self.0.lock();
        for entry in entries {
            if let Some((call, _)) = unacknowledged(&mut calls, *entry) {
                call.in_memory = false;
            }
        }
    }

    /// Whether there are entries of this record that are not acknowledged, and all of them are in memory. Others have to be read,
    /// or the record has to end.
    pub fn has_in_memory(&self, record: EntryId) -> bool {
        let calls = self.0.lock();
        calls.get(&record).is_some_and(|call| call.in_memory && !call.unacknowledged.is_empty())
    }

    /// Forgets all: they may be another consumer's by now.
    pub fn clear(&self) {
        self.0.lock().clear();
    }
}

/// The call that added this entry, and where in it the entry is; `None` where it is acknowledged.
fn unacknowledged(
    calls: &mut BTreeMap<EntryId, Call>,
    entry: EntryId,
) -> Option<(&mut Call, usize)> {
    let (_, call) = calls.range_mut(entry..).next()?;
    let at = call.unacknowledged.binary_search(&entry).ok()?;
    Some((call, at))
}

#[cfg(test)]
mod tests {
    use super::super::entry_id::tests::id;
    use super::*;

    #[test]
    fn a_record_ends_with_the_last_of_its_entries() {
        let held = HeldCalls::default();
        held.hold(vec![id(1, 0), id(1, 1), id(1, 2)]);
        held.hold(vec![id(2, 0), id(2, 1)]);
        assert!(held.ending(&[id(1, 0), id(1, 0), id(1, 1), id(2, 0), id(9, 0)]).is_empty());
        held.acknowledged(&[id(1, 0), id(1, 1), id(1, 1), id(2, 0)]);
        assert_eq!(held.ending(&[id(1, 2)]), [id(1, 2)]);
        // Two that are acknowledged side by side do not see each other: the next one ends what they could have.
        held.acknowledged(&[id(1, 2)]);
        assert_eq!(held.ending(&[id(2, 1)]), [id(1, 2), id(2, 1)]);
        held.forget(&[id(1, 2), id(2, 1)]);
        assert!(held.ending(&[id(2, 1)]).is_empty());
    }

    #[test]
    fn what_left_memory_without_an_acknowledgement_has_to_be_read() {
        let held = HeldCalls::default();
        held.hold(vec![id(1, 0), id(1, 1)]);
        held.acknowledged(&[id(1, 0)]);
        held.left_memory(&[id(1, 0)]);
        assert!(held.has_in_memory(id(1, 1)));
        held.left_memory(&[id(1, 1)]);
        assert!(!held.has_in_memory(id(1, 1)) && !held.has_in_memory(id(3, 0)));
        held.hold(vec![id(2, 0)]);
        held.acknowledged(&[id(2, 0)]);
        assert!(!held.has_in_memory(id(2, 0)), "it could have ended");
        held.hold(vec![id(4, 0)]);
        held.clear();
        assert!(!held.has_in_memory(id(4, 0)));
    }
}
