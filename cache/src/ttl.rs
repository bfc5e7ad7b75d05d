//! Times to live with a random share. Pure arithmetic.

use std::time::Duration;

/// How long a cached value lives: a base, and the share by which each single value deviates from
/// it. Values that were stored together then do not expire together (the cure for *avalanche*).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ttl {
    base: Duration,
    share: f64,
}

impl Ttl {
    /// Exactly `base`, for each value.
    pub const fn exact(base: Duration) -> Self {
        Self { base, share: 0.0 }
    }

    /// Between `base × (1 − share)` and `base × (1 + share)`, evenly spread; a share outside of
    /// 0…1 is brought into it.
    pub fn jittered(base: Duration, share: f64) -> Self {
        let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
        Self { base, share }
    }

    /// The time around which values expire.
    pub const fn base(&self) -> Duration {
        self.base
    }

    /// The time to live of one value, in milliseconds, at least 1.
    pub fn pick(&self) -> u64 {
        let factor = 1.0 + self.share * rand::random_range(-1.0..=1.0);
        // A float that is too large saturates; Redis refuses what is beyond its own range.
        let millis = self.base.as_secs_f64() * 1000.0 * factor;
        (millis as u64).clamp(1, i64::MAX as u64 / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_is_exact_and_jitter_stays_in_its_range_and_spreads() {
        assert_eq!(Ttl::exact(Duration::from_secs(120)).pick(), 120_000);
        let ttl = Ttl::jittered(Duration::from_secs(1000), 0.1);
        let picks: Vec<u64> = (0..1000).map(|_| ttl.pick()).collect();
        assert!(picks.iter().all(|pick| (900_000..=1_100_000).contains(pick)));
        assert!(picks.iter().any(|pick| *pick < 920_000), "the low end is reached");
        assert!(picks.iter().any(|pick| *pick > 1_080_000), "the high end is reached");
    }

    #[test]
    fn absurd_values_stay_usable() {
        assert!(Ttl::jittered(Duration::ZERO, 0.5).pick() >= 1);
        assert!(Ttl::jittered(Duration::from_secs(1), f64::NAN).pick() == 1000);
        assert!(Ttl::jittered(Duration::MAX, 9.0).pick() <= i64::MAX as u64);
    }
}
