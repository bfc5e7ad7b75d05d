//! A limit per key: one hot shop, one user or one address must not crowd out all others. Counted in
//! this process, by a token bucket (GCRA, from the crate `governor`) that holds one second's worth.

use std::hash::Hash;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use crate::error::Error;

/// Keys that are tracked before those at rest are forgotten.
const TRACKED: usize = 100_000;

/// Checks from one look at the number of tracked keys to the next: with very many keys at once, looking
/// at each check would cost more than what the limit saves.
const CHECKS: u32 = 4096;

/// Requests a second for each key.
pub struct Limit<K: Clone + Eq + Hash>(Option<Counted<K>>);

struct Counted<K: Clone + Eq + Hash> {
    limiter: DefaultKeyedRateLimiter<K>,
    checks: AtomicU32,
}

impl<K: Clone + Eq + Hash> Limit<K> {
    /// At most `per_second` for each key; 0 for no limit.
    pub fn new(per_second: u32) -> Self {
        let quota = NonZeroU32::new(per_second).map(Quota::per_second);
        let counted = |quota| Counted { limiter: RateLimiter::keyed(quota), checks: 0.into() };
        Limit(quota.map(counted))
    }

    /// Counts one request for `key`; refuses it where that is one too many.
    pub fn check(&self, key: &K) -> Result<(), Error> {
        let Some(Counted { limiter, checks }) = &self.0 else { return Ok(()) };
        if checks.fetch_add(1, Ordering::Relaxed) % CHECKS == 0 && limiter.len() > TRACKED {
            limiter.retain_recent();
            limiter.shrink_to_fit();
        }
        // The bucket gains at least one a second.
        limiter.check_key(key).map_err(|_| Error::TooManyRequests { retry_after_seconds: 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hot_key_is_limited_and_others_are_not() {
        let limit = Limit::new(3);
        let passed = (0..100).filter(|_| limit.check(&1).is_ok()).count();
        assert!((3..10).contains(&passed), "{passed}");
        assert!(limit.check(&2).is_ok());
        assert!((0..100).all(|_| Limit::new(0).check(&1).is_ok()));
    }

    #[test]
    fn keys_at_rest_are_forgotten() {
        let limit = Limit::new(1_000_000);
        for key in 0..4 * TRACKED {
            limit.check(&key).expect("far from the limit");
        }
        // A bucket of a million a second is full again after a microsecond.
        let tracked = limit.0.map(|counted| counted.limiter.len());
        assert!(tracked.is_some_and(|tracked| tracked <= TRACKED + CHECKS as usize), "{tracked:?}");
    }
}
