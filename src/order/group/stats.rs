//! What group commit did, for `/metrics`: how many batches there were, and of what size.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Sizes are counted up to each power of two, the largest being 2^16.
const BUCKETS: usize = 17;

/// Counters; all only rise.
#[derive(Debug, Default)]
pub struct Stats {
    /// Batches by size: the first holds those of 1, the second those of 2, then up to 4, up to 8, …
    sizes: [AtomicU64; BUCKETS],
    orders: AtomicU64,
    splits: AtomicU64,
}

impl Stats {
    pub(super) fn committed<E>(&self, outcome: &Result<(), E>, orders: usize) {
        if outcome.is_ok() {
            let bucket = orders.max(1).next_power_of_two().trailing_zeros() as usize;
            self.sizes[bucket.min(BUCKETS - 1)].fetch_add(1, Relaxed);
            self.orders.fetch_add(orders as u64, Relaxed);
        }
    }

    pub(super) fn split(&self) {
        self.splits.fetch_add(1, Relaxed);
    }

    /// Orders committed.
    pub fn orders(&self) -> u64 {
        self.orders.load(Relaxed)
    }

    /// Batches that had to be taken apart because of one order.
    pub fn splits(&self) -> u64 {
        self.splits.load(Relaxed)
    }

    /// Batches committed.
    pub fn batches(&self) -> u64 {
        self.up_to().last().map_or(0, |(_, count)| count)
    }

    /// Each bound, and how many batches were of at most that size.
    pub fn up_to(&self) -> impl Iterator<Item = (usize, u64)> {
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
        let stats = Stats::default();
        for size in [1, 2, 3, 4, 5, 512] {
            stats.committed(&Ok::<_, ()>(()), size);
        }
        stats.committed(&Err(()), 7);
        let up_to: Vec<_> = stats.up_to().collect();
        assert_eq!(&up_to[..4], &[(1, 1), (2, 2), (4, 4), (8, 5)]);
        assert_eq!(up_to[9], (512, 6));
        assert_eq!((stats.batches(), stats.orders()), (6, 527));
    }
}
