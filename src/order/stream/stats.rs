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
    /// What only rises, by name: of this process.
    pub fn counters(&self) -> [(&'static str, u64); 7] {
        [
            ("stream_admitted_total", self.admitted.get()),
            ("stream_ordered_total", self.ordered.get()),
            ("stream_refused_total", self.refused.get()),
            ("stream_parked_total", self.parked.get()),
            ("stream_taken_over_total", self.taken_over.get()),
            ("stream_replayed_total", self.replayed.get()),
            ("stream_gates_rebuilt_total", self.rebuilt.get()),
        ]
    }

    /// How things stand, by name: the stream is one for all nodes, the last line is this process's.
    pub fn gauges(&self) -> [(&'static str, u64); 5] {
        [
            ("stream_undecided", self.waiting.get()),
            ("stream_delivered_undecided", self.pending.get()),
            ("stream_dead_letters", self.dead.get()),
            ("stream_oldest_undecided_ms", self.lag_ms.get()),
            ("stream_outstanding_here", self.outstanding.get()),
        ]
    }
}
