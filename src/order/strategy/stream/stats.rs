//! Counters and gauges of the stream for `/metrics`: what this process did, and the state of the streams as their
//! maintenance last read it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters and gauges.
#[derive(Debug, Default)]
pub struct StreamStats {
    pub(super) admitted: AtomicU64,
    pub(super) ordered: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) dead_lettered: AtomicU64,
    pub(super) taken_over: AtomicU64,
    pub(super) dropped_elsewhere: AtomicU64,
    pub(super) replayed: AtomicU64,
    pub(super) rebuilt: AtomicU64,
    pub(super) waiting: AtomicU64,
    pub(super) pending: AtomicU64,
    pub(super) dead_letters: AtomicU64,
    pub(super) lag_ms: AtomicU64,
    pub(super) unconfirmed: AtomicU64,
}

impl StreamStats {
    /// The sum of several; of the lags, the longest.
    pub(super) fn sum<'a>(all: impl Iterator<Item = &'a StreamStats>) -> Self {
        let sum = StreamStats::default();
        for one in all {
            for (sum, one) in sum.numbers().into_iter().zip(one.numbers()) {
                sum.fetch_add(one.load(Relaxed), Relaxed);
            }
            sum.lag_ms.fetch_max(one.lag_ms.load(Relaxed), Relaxed);
        }
        sum
    }

    fn numbers(&self) -> [&AtomicU64; 12] {
        [
            &self.admitted,
            &self.ordered,
            &self.refused,
            &self.dead_lettered,
            &self.taken_over,
            &self.dropped_elsewhere,
            &self.replayed,
            &self.rebuilt,
            &self.waiting,
            &self.pending,
            &self.dead_letters,
            &self.unconfirmed,
        ]
    }

    /// Counters of this process: name, help text, value.
    pub fn counters(&self) -> [(&'static str, &'static str, u64); 8] {
        [
            ("admitted", "Orders this process admitted.", &self.admitted),
            ("ordered", "Entries this process found committed, or committed.", &self.ordered),
            ("refused", "Entries this process had refused, their stock returned.", &self.refused),
            (
                "dead_lettered",
                "Entries this process moved to the dead-letter stream.",
                &self.dead_lettered,
            ),
            ("taken_over", "Entries taken over from dead consumers.", &self.taken_over),
            (
                "dropped_elsewhere",
                "Entries refused because another kind of consumer acknowledged them without an order.",
                &self.dropped_elsewhere,
            ),
            ("replayed", "Orders added again because Redis may have lost them.", &self.replayed),
            ("stock_counters_rebuilt", "Stock counters rebuilt from the database.", &self.rebuilt),
        ]
        .map(|(name, help, number)| (name, help, number.load(Relaxed)))
    }

    /// Gauges: name, help text, value. The stream is shared by all nodes; the last one is of this process.
    pub fn gauges(&self) -> [(&'static str, &'static str, u64); 4] {
        [
            (
                "entries_waiting",
                "Entries of the stream that are not acknowledged yet.",
                &self.waiting,
            ),
            (
                "entries_pending",
                "Those of them in the group's list of pending entries: what a consumer has read or taken over.",
                &self.pending,
            ),
            ("dead_letters", "Entries that could not be turned into orders.", &self.dead_letters),
            (
                "unconfirmed_orders",
                "Orders this process admitted and does not know to be committed.",
                &self.unconfirmed,
            ),
        ]
        .map(|(name, help, number)| (name, help, number.load(Relaxed)))
    }

    /// The longest lag of a stream: the age of the oldest unacknowledged entry, in seconds; 0 without one.
    pub fn lag(&self) -> f64 {
        self.lag_ms.load(Relaxed) as f64 / 1e3
    }
}
