//! Counters of group commit for `/metrics`: batches and their sizes.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::histogram::{Counted, Histogram};

/// Bounds of a batch's size: powers of two.
const SIZES: [u64; 17] = {
    let (mut sizes, mut at) = ([1; 17], 1);
    while at < sizes.len() {
        sizes[at] = 2 * sizes[at - 1];
        at += 1;
    }
    sizes
};

/// Counters; all only rise.
#[derive(Debug)]
pub struct GroupCommitStats {
    sizes: Histogram<{ SIZES.len() }>,
    splits: AtomicU64,
}

impl Default for GroupCommitStats {
    fn default() -> Self {
        GroupCommitStats { sizes: Histogram::new(SIZES), splits: AtomicU64::new(0) }
    }
}

impl GroupCommitStats {
    /// Counts a batch that committed so many orders; one that committed none is not counted.
    pub(super) fn count_batch(&self, orders: usize) {
        if orders > 0 {
            self.sizes.add(orders as u64);
        }
    }

    /// Counts a batch that was split.
    pub(super) fn count_split(&self) {
        self.splits.fetch_add(1, Relaxed);
    }

    /// Batches that were split into single transactions because of one order.
    pub fn splits(&self) -> u64 {
        self.splits.load(Relaxed)
    }

    /// Orders by batch.
    pub fn sizes(&self) -> Counted<u64> {
        self.sizes.counted()
    }
}
