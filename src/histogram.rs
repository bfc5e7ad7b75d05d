//! Histograms for `/metrics`: values counted up to given bounds.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Counts; all only rise.
#[derive(Debug)]
pub struct Histogram<const N: usize> {
    bounds: [u64; N],
    counts: [AtomicU64; N],
    beyond: AtomicU64,
    sum: AtomicU64,
}

/// Upper bounds of durations, microseconds.
const DURATIONS_US: [u64; 13] = [
    500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
    2_000_000, 5_000_000,
];

/// A histogram of durations.
#[derive(Debug)]
pub struct Durations(Histogram<{ DURATIONS_US.len() }>);

/// What a histogram counted.
#[derive(Debug, PartialEq)]
pub struct Counted<T> {
    /// Each bound, and how many values were at most that large.
    pub up_to: Vec<(T, u64)>,
    /// How many there were.
    pub count: u64,
    /// Their sum.
    pub sum: T,
}

impl<const N: usize> Histogram<N> {
    /// Without values. The bounds rise.
    pub const fn new(bounds: [u64; N]) -> Self {
        let counts = [const { AtomicU64::new(0) }; N];
        Histogram { bounds, counts, beyond: AtomicU64::new(0), sum: AtomicU64::new(0) }
    }

    /// Counts a value.
    pub fn add(&self, value: u64) {
        let bucket = self.bounds.partition_point(|bound| value > *bound);
        self.counts.get(bucket).unwrap_or(&self.beyond).fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
    }

    /// The counts so far.
    pub fn counted(&self) -> Counted<u64> {
        let mut count = 0;
        let mut up_to = |(bound, counted): (&u64, &AtomicU64)| {
            count += counted.load(Relaxed);
            (*bound, count)
        };
        let up_to = self.bounds.iter().zip(&self.counts).map(&mut up_to).collect();
        count += self.beyond.load(Relaxed);
        Counted { up_to, count, sum: self.sum.load(Relaxed) }
    }
}

impl Default for Durations {
    fn default() -> Self {
        Durations(Histogram::new(DURATIONS_US))
    }
}

impl Durations {
    /// Counts a duration.
    pub fn add(&self, took: Duration) {
        self.0.add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }

    /// The counts so far, in seconds.
    pub fn counted(&self) -> Counted<f64> {
        let Counted { up_to, count, sum } = self.0.counted();
        let seconds = |us: u64| us as f64 / 1e6;
        let up_to = up_to.into_iter().map(|(bound, count)| (seconds(bound), count)).collect();
        Counted { up_to, count, sum: seconds(sum) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_up_to_each_bound_and_beyond() {
        let sizes = Histogram::new([1, 2, 4]);
        [1, 2, 3, 4, 5].into_iter().for_each(|size| sizes.add(size));
        let up_to = vec![(1, 1), (2, 2), (4, 4)];
        assert_eq!(sizes.counted(), Counted { up_to, count: 5, sum: 15 });

        let took = Durations::default();
        [1, 30, 9_000].into_iter().for_each(|ms| took.add(Duration::from_millis(ms)));
        let Counted { up_to, count, sum } = took.counted();
        assert_eq!((&up_to[..2], up_to[6]), (&[(0.0005, 0), (0.001, 1)][..], (0.05, 2)));
        assert_eq!((up_to[12], count, sum), ((5.0, 2), 3, 9.031));
    }
}
