//! Histograms for `/metrics`: values are counted up to given bounds, and reported in the form of the lock crate.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use lock::DurationHistogram;

/// A histogram, whose counts only rise.
#[derive(Debug)]
pub struct Histogram {
    /// Upper bounds in the counted unit, in ascending order.
    bounds: &'static [u64],
    /// How many counted units are reported as 1.
    unit: f64,
    /// One for each bound, and one for larger values.
    counts: Vec<AtomicU64>,
    sum: AtomicU64,
}

/// Upper bounds of durations, microseconds.
const DURATIONS_US: [u64; 13] = [
    500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
    2_000_000, 5_000_000,
];

/// A histogram of durations.
impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            unit: 1e6,
            ..Histogram::of_sizes(&DURATIONS_US)
        }
    }
}

impl Histogram {
    /// A histogram of sizes.
    pub fn of_sizes(bounds: &'static [u64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Histogram {
            bounds,
            unit: 1.0,
            counts,
            sum: AtomicU64::new(0),
        }
    }

    /// Counts a size.
    pub fn add(&self, value: u64) {
        let bucket = self.bounds.partition_point(|bound| value > *bound);
        self.counts[bucket].fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
    }

    /// Counts a duration.
    pub fn add_duration(&self, took: Duration) {
        self.add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }

    /// The counts so far. The field `seconds` is the sum, also where sizes are counted.
    pub fn counted(&self) -> DurationHistogram {
        let mut count = 0;
        let mut buckets = Vec::with_capacity(self.bounds.len());
        for (at, counted) in self.counts.iter().enumerate() {
            count += counted.load(Relaxed);
            if let Some(bound) = self.bounds.get(at) {
                buckets.push((*bound as f64 / self.unit, count));
            }
        }
        DurationHistogram {
            buckets,
            count,
            seconds: self.sum.load(Relaxed) as f64 / self.unit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_up_to_each_bound_and_beyond() {
        let sizes = Histogram::of_sizes(&[1, 2, 4]);
        [1, 2, 3, 4, 5].into_iter().for_each(|size| sizes.add(size));
        let DurationHistogram {
            buckets,
            count,
            seconds,
        } = sizes.counted();
        assert_eq!(
            (buckets, count, seconds),
            (vec![(1.0, 1), (2.0, 2), (4.0, 4)], 5, 15.0)
        );

        let took = Histogram::default();
        [1, 30, 9_000]
            .into_iter()
            .for_each(|ms| took.add_duration(Duration::from_millis(ms)));
        let DurationHistogram {
            buckets,
            count,
            seconds,
        } = took.counted();
        assert_eq!(
            (&buckets[..2], buckets[6]),
            (&[(0.0005, 0), (0.001, 1)][..], (0.05, 2))
        );
        assert_eq!((buckets[12], count, seconds), ((5.0, 2), 3, 9.031));
    }
}
