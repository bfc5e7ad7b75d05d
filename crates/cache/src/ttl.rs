//! Times to live with random jitter. Pure arithmetic.

use std::time::Duration;

/// A time to live with jitter: a base, and the relative range by which each value deviates from it.
/// Values that were stored together then do not expire together (the cure for a *cache avalanche*).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ttl {
    base: Duration,
    jitter: f64,
}

impl Ttl {
    /// Exactly `base`, for each value.
    pub const fn exact(base: Duration) -> Self {
        Self { base, jitter: 0.0 }
    }

    /// Between `base × (1 − jitter)` and `base × (1 + jitter)`, uniformly distributed. `jitter` is
    /// clamped to 0…1.
    pub fn jittered(base: Duration, jitter: f64) -> Self {
        let jitter = if jitter.is_finite() { jitter.clamp(0.0, 1.0) } else { 0.0 };
        Self { base, jitter }
    }

    /// The time to live without jitter.
    pub const fn base(&self) -> Duration {
        self.base
    }

    /// The time to live of one value, in milliseconds, at least 1.
    pub(crate) fn sample_millis(&self) -> u64 {
        let factor = 1.0 + self.jitter * rand::random_range(-1.0..=1.0);
        // A float that is too large saturates; Redis refuses what is beyond its own range.
        let millis = self.base.as_secs_f64() * 1000.0 * factor;
        (millis as u64).clamp(1, i64::MAX as u64 / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_has_no_jitter_and_jitter_covers_its_range() {
        assert_eq!(Ttl::exact(Duration::from_secs(120)).sample_millis(), 120_000);
        let ttl = Ttl::jittered(Duration::from_secs(1000), 0.1);
        let samples: Vec<u64> = (0..1000).map(|_| ttl.sample_millis()).collect();
        assert!(samples.iter().all(|sample| (900_000..=1_100_000).contains(sample)));
        assert!(samples.iter().any(|sample| *sample < 920_000), "the low end is reached");
        assert!(samples.iter().any(|sample| *sample > 1_080_000), "the high end is reached");
    }

    #[test]
    fn out_of_range_values_are_clamped() {
        assert!(Ttl::jittered(Duration::ZERO, 0.5).sample_millis() >= 1);
        assert!(Ttl::jittered(Duration::from_secs(1), f64::NAN).sample_millis() == 1000);
        assert!(Ttl::jittered(Duration::MAX, 9.0).sample_millis() <= i64::MAX as u64);
    }
}
