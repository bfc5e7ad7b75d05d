//! Counters of group commit for `/metrics`: batches and their sizes.

use std::sync::atomic::AtomicU64;

use crate::histogram::Histogram;

/// Bounds of a batch's size.
const SIZES: [u64; 17] =
    [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536];

/// Counters; all only rise.
#[derive(Debug)]
pub struct GroupCommitStats {
    /// Orders by batch; without batches that committed none.
    pub sizes: Histogram,
    /// Batches that were split into single transactions because of one order.
    pub splits: AtomicU64,
}

impl Default for GroupCommitStats {
    fn default() -> Self {
        GroupCommitStats { sizes: Histogram::of_sizes(&SIZES), splits: AtomicU64::new(0) }
    }
}
