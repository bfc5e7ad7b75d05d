//! Counters of group commit for `/metrics`: batches and their sizes.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Sizes are counted up to each power of two, the largest being 2^16.
const BUCKETS: usize = 17;

/// Counters; all only rise.
#[derive(Debug, Default)]
pub struct GroupCommitStats {
    /// Batches by size: the first holds those of 1, the second those of 2, then up to 4, up to 8, …
    sizes: [AtomicU64; BUCKETS],
    orders: AtomicU64,
    splits: AtomicU64,
}

impl GroupCommitStats {
    /// Counts a batch that committed so many orders; one that committed none is not counted.
    pub(super) fn count_batch(&self, orders: usize) {
        if orders > 0 {
            let bucket = orders.next_power_of_two().trailing_zeros() as usize;
            self.sizes[bucket.min(BUCKETS - 1)].fetch_add(1, Relaxed);
            self.orders.fetch_add(orders as u64, Relaxed);
        }
    }

    /// Counts a batch that was split.
    pub(super) fn count_split(&self) {
        self.splits.fetch_add(1, Relaxed);
    }

    /// Orders committed.
    pub fn orders(&self) -> u64 {
        self.orders.load(Relaxed)
    }

    /// Batches that were split into single transactions because of one order.
    pub fn splits(&self) -> u64 {
        self.splits.load(Relaxed)
    }

    /// Batches committed.
    pub fn batches(&self) -> u64 {
        self.cumulative().last().map_or(0, |(_, count)| count)
    }

    /// Each bound of the size histogram, and how many batches were at most that large.
    pub fn cumulative(&self) -> impl Iterator<Item = (usize, u64)> {
        self.sizes.iter().enumerate().scan(0, |sum, (bucket, count)| {
            *sum += count.load(Relaxed);
            Some((1 << bucket, *sum))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_counted_up_to_powers_of_two() {
        let stats = GroupCommitStats::default();
        for size in [1, 2, 3, 4, 5, 512] {
            stats.count_batch(size);
        }
        stats.count_batch(0);
        let cumulative: Vec<_> = stats.cumulative().collect();
        assert_eq!(&cumulative[..4], &[(1, 1), (2, 2), (4, 4), (8, 5)]);
        assert_eq!(cumulative[9], (512, 6));
        assert_eq!((stats.batches(), stats.orders()), (6, 527));
    }
}
