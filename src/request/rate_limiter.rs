//! Rate limiter per key: one hot shop, user or address must not crowd out all others. A token bucket in this process
//! (GCRA, from the crate `governor`) that holds one second's worth.

use std::hash::Hash;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};

use governor::{DefaultKeyedRateLimiter, Quota};

use crate::error::Error;

/// Number of tracked keys above which idle ones are removed.
const MAX_IDLE_KEYS: usize = 100_000;

/// Checks between two looks at the number of tracked keys. With very many keys, counting them at each check would cost
/// more than the limit saves.
const CHECKS_PER_CLEANUP: u32 = 4096;

/// At most so many requests a second for each key.
pub struct RateLimiter<K: Clone + Eq + Hash>(Option<Buckets<K>>);

struct Buckets<K: Clone + Eq + Hash> {
    keyed: DefaultKeyedRateLimiter<K>,
    checks: AtomicU32,
}

impl<K: Clone + Eq + Hash> RateLimiter<K> {
    /// At most `per_second` requests for each key; 0 for no limit.
    pub fn new(per_second: u32) -> Self {
        let quota = NonZeroU32::new(per_second).map(Quota::per_second);
        RateLimiter(quota.map(|quota| Buckets {
            keyed: governor::RateLimiter::keyed(quota),
            checks: 0.into(),
        }))
    }

    /// Counts one request for `key`; [`Error::TooManyRequests`] where the key is over its limit.
    pub fn check(&self, key: &K) -> Result<(), Error> {
        let Some(Buckets { keyed, checks }) = &self.0 else {
            return Ok(());
        };
        if checks.fetch_add(1, Ordering::Relaxed) % CHECKS_PER_CLEANUP == 0
            && keyed.len() > MAX_IDLE_KEYS
        {
            keyed.retain_recent();
            keyed.shrink_to_fit();
        }
        // The bucket gains at least one token a second.
        keyed.check_key(key).map_err(|_| Error::TooManyRequests {
            retry_after_seconds: 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_keys_are_removed() {
        let limiter = RateLimiter::new(1_000_000);
        for key in 0..4 * MAX_IDLE_KEYS {
            limiter.check(&key).expect("far from the limit");
        }
        // A bucket of a million a second is full again after a microsecond.
        let tracked = limiter.0.map(|buckets| buckets.keyed.len());
        let bound = MAX_IDLE_KEYS + CHECKS_PER_CLEANUP as usize;
        assert!(
            tracked.is_some_and(|tracked| tracked <= bound),
            "{tracked:?}"
        );
    }
}
