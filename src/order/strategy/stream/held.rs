//! What this process's consumer holds: the entries of each call of the admission script that added some and left them to it. The
//! group has gone past them, and none is pending; one record for each call says in Redis whose they are. When all entries
//! of a call are acknowledged its record ends with the last of them. No I/O may come in here.

use std::collections::{BTreeMap, HashSet};

use parking_lot::Mutex;

use super::entry::{Position, text};

/// The calls, by their last entry, as their records are.
#[derive(Default)]
pub(super) struct HeldCalls(Mutex<BTreeMap<Position, Call>>);

struct Call {
    first: Position,
    /// Its entries that are not acknowledged.
    unacknowledged: HashSet<Position>,
    /// Whether all of these wait in memory, or are being committed.
    in_memory: bool,
}

impl HeldCalls {
    /// Takes note of a call that added these entries, which are in memory from now on.
    pub fn hold(&self, entries: &[Position]) {
        if let (Some(first), Some(last)) = (entries.first(), entries.last()) {
            let unacknowledged = entries.iter().copied().collect();
            let call = Call { first: *first, unacknowledged, in_memory: true };
            self.0.lock().insert(*last, call);
        }
    }

    /// The records that end when these entries are acknowledged, or could have ended before.
    pub fn ending(&self, entries: &[Position]) -> Vec<String> {
        let calls = self.0.lock();
        let mut left: BTreeMap<Position, HashSet<Position>> = BTreeMap::new();
        for entry in entries {
            if let Some((last, call)) = of_entry(&calls, *entry)
                && call.unacknowledged.contains(entry)
            {
                left.entry(last).or_default().insert(*entry);
            }
        }
        let ends = |(last, call): (&Position, &Call)| {
            let acknowledged = left.get(last).map_or(0, HashSet::len);
            (call.unacknowledged.len() == acknowledged).then(|| text(*last))
        };
        calls.iter().filter_map(ends).collect()
    }

    /// Takes note that these entries are acknowledged.
    pub fn acknowledged(&self, entries: &[Position]) {
        let mut calls = self.0.lock();
        for entry in entries {
            let last = of_entry(&calls, *entry).map(|(last, _)| last);
            if let Some(call) = last.and_then(|last| calls.get_mut(&last)) {
                call.unacknowledged.remove(entry);
            }
        }
    }

    /// Forgets calls whose records have ended.
    pub fn forget(&self, records: &[String]) {
        self.0.lock().retain(|last, _| !records.contains(&text(*last)));
    }

    /// Takes note that an entry is not in memory any more.
    pub fn left_memory(&self, entry: Position) {
        let mut calls = self.0.lock();
        let last = of_entry(&calls, entry).map(|(last, _)| last);
        if let Some(call) = last.and_then(|last| calls.get_mut(&last))
            && call.unacknowledged.contains(&entry)
        {
            call.in_memory = false;
        }
    }

    /// Whether there are entries of this record that are not acknowledged, and all of them are in memory. Others have to be read,
    /// or the record has to end.
    pub fn has_in_memory(&self, record: Position) -> bool {
        let calls = self.0.lock();
        calls.get(&record).is_some_and(|call| call.in_memory && !call.unacknowledged.is_empty())
    }

    /// Forgets all: they may be another consumer's by now.
    pub fn clear(&self) {
        self.0.lock().clear();
    }
}

/// The call that added this entry.
fn of_entry(calls: &BTreeMap<Position, Call>, entry: Position) -> Option<(Position, &Call)> {
    let (last, call) = calls.range(entry..).next()?;
    (call.first <= entry).then_some((*last, call))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_ends_with_the_last_of_its_entries() {
        let held = HeldCalls::default();
        held.hold(&[(1, 0), (1, 1), (1, 2)]);
        held.hold(&[(2, 0), (2, 1)]);
        assert!(held.ending(&[(1, 0), (1, 0), (1, 1), (2, 0), (9, 0)]).is_empty());
        held.acknowledged(&[(1, 0), (1, 1), (1, 1), (2, 0)]);
        assert_eq!(held.ending(&[(1, 2)]), ["1-2"]);
        // Two that are acknowledged side by side do not see each other: the next one ends what they could have.
        held.acknowledged(&[(1, 2)]);
        assert_eq!(held.ending(&[(2, 1)]), ["1-2", "2-1"]);
        held.forget(&["1-2".to_owned(), "2-1".to_owned()]);
        assert!(held.ending(&[(2, 1)]).is_empty());
    }

    #[test]
    fn what_left_memory_without_an_acknowledgement_has_to_be_read() {
        let held = HeldCalls::default();
        held.hold(&[(1, 0), (1, 1)]);
        held.acknowledged(&[(1, 0)]);
        held.left_memory((1, 0));
        assert!(held.has_in_memory((1, 1)));
        held.left_memory((1, 1));
        assert!(!held.has_in_memory((1, 1)) && !held.has_in_memory((3, 0)));
        held.hold(&[(2, 0)]);
        held.acknowledged(&[(2, 0)]);
        assert!(!held.has_in_memory((2, 0)), "it could have ended");
        held.hold(&[(4, 0)]);
        held.clear();
        assert!(!held.has_in_memory((4, 0)));
    }
}
