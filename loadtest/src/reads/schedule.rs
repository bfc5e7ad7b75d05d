//! The schedule of reads: Zipf's law over the ids, and the due times of an open loop.

use std::time::{Duration, Instant};

use rand::Rng;

/// Draws indices 0…n−1 with the probability of index `i` proportional to `1/(i+1)^s` (Zipf's law;
/// s = 0 is uniform, 1 is the classic web). Exact, by bisection of the cumulated weights.
#[derive(Debug, Clone)]
pub struct Zipf {
    cumulated: Vec<f64>,
}

impl Zipf {
    /// For `n` ≥ 1 indices; a skew that is not finite or below 0 counts as 0.
    pub fn new(n: usize, skew: f64) -> Self {
        let skew = if skew.is_finite() { skew.max(0.0) } else { 0.0 };
        let mut sum = 0.0;
        let weights = (1..=n.max(1)).map(|rank| {
            sum += (rank as f64).powf(-skew);
            sum
        });
        Self { cumulated: weights.collect() }
    }

    /// One draw.
    pub fn draw(&self, rng: &mut impl Rng) -> usize {
        let last = self.cumulated.len() - 1;
        let at = rng.random::<f64>() * self.cumulated[last];
        self.cumulated.partition_point(|sum| *sum <= at).min(last)
    }
}

/// When the `index`-th request of an open loop is due, at `rate` requests a second.
pub fn due(begin: Instant, index: u64, rate: f64) -> Instant {
    begin + Duration::from_secs_f64(index as f64 / rate.max(1e-3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(n: usize, skew: f64) -> Vec<u32> {
        let (zipf, mut rng) = (Zipf::new(n, skew), rand::rng());
        let mut counts = vec![0; n];
        (0..100_000).for_each(|_| counts[zipf.draw(&mut rng)] += 1);
        counts
    }

    #[test]
    fn draws_follow_the_law() {
        let even = counts(10, 0.0);
        assert!(even.iter().all(|count| (9_000..11_000).contains(count)), "{even:?}");
        // With s = 1 and n = 10 the first has 1 / 2.929 of all, the second half of that.
        let skewed = counts(10, 1.0);
        assert!((33_000..35_500).contains(&skewed[0]), "{skewed:?}");
        assert!((16_000..18_200).contains(&skewed[1]), "{skewed:?}");
        assert_eq!(counts(1, 1.0), [100_000]);
    }

    #[test]
    fn due_times_keep_the_rate() {
        let begin = Instant::now();
        assert_eq!(due(begin, 500, 1000.0) - begin, Duration::from_millis(500));
    }
}
