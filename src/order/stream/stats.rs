//! What the stream did, for `/metrics`: counters of this process, and the stream as its keeper last saw it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A number that tasks share.
#[derive(Debug, Default)]
pub(super) struct Number(AtomicU64);

impl Number {
    pub(super) fn add(&self, count: u64) {
        self.0.fetch_add(count, Relaxed);
    }

    pub(super) fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Counters and gauges.
#[derive(Debug, Default)]
pub struct Stats {
    pub(super) admitted: Number,
    pub(super) ordered: Number,
    pub(super) refused: Number,
    pub(super) parked: Number,
    pub(super) taken_over: Number,
    pub(super) replayed: Number,
    pub(super) rebuilt: Number,
    pub(super) waiting: Number,
    pub(super) pending: Number,
    pub(super) dead: Number,
    pub(super) lag_ms: Number,
    pub(super) outstanding: Number,
}

impl Stats {
    /// What only rises, by name, with what it counts: of this process.
    pub fn counters(&self) -> [(&'static str, &'static str, u64); 7] {
        [
            ("admitted", "Orders this process admitted.", &self.admitted),
            ("ordered", "Entries this process found committed, or committed.", &self.ordered),
            (
                "refused",
                "Entries this process had refused, their places given back.",
                &self.refused,
            ),
            ("parked", "Entries this process put among the dead letters.", &self.parked),
            ("taken_over", "Entries taken over from consumers that are gone.", &self.taken_over),
            ("replayed", "Orders added again because Redis may have lost them.", &self.replayed),
            ("gates_rebuilt", "Gates of sales built anew from the database.", &self.rebuilt),
        ]
        .map(|(name, help, number)| (name, help, number.get()))
    }

    /// How things stand, by name, with what it is: the stream is one for all nodes, the last line is this
    /// process's.
    pub fn gauges(&self) -> [(&'static str, &'static str, u64); 4] {
        [
            ("undecided", "Entries of the stream that nobody has decided yet.", &self.waiting),
            ("delivered_undecided", "Those of them that a consumer has read.", &self.pending),
            ("dead_letters", "Entries that could not be made into orders.", &self.dead),
            ("outstanding_here", "Undecided orders that this process admitted.", &self.outstanding),
        ]
        .map(|(name, help, number)| (name, help, number.get()))
    }

    /// The stream's lag: the age of the oldest undecided entry, in seconds; 0 without one.
    pub fn lag(&self) -> f64 {
        self.lag_ms.get() as f64 / 1e3
    }
}
