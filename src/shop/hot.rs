//! A limit per shop id: one hot shop must not crowd out all others. Counted in this process, by a
//! token bucket that holds one second's worth.

use std::num::NonZeroU32;

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use crate::error::Error;

/// Ids that are tracked before those at rest are forgotten.
const TRACKED: usize = 100_000;

/// Requests a second for each id.
pub struct HotLimit(Option<DefaultKeyedRateLimiter<i64>>);

impl HotLimit {
    /// At most `per_second` for each id; 0 for no limit.
    pub fn new(per_second: u32) -> Self {
        let quota = NonZeroU32::new(per_second).map(Quota::per_second);
        HotLimit(quota.map(RateLimiter::keyed))
    }

    /// Counts one request for `id`; refuses it where that is one too many.
    pub fn check(&self, id: i64) -> Result<(), Error> {
        let Some(limiter) = &self.0 else { return Ok(()) };
        if limiter.len() > TRACKED {
            limiter.retain_recent();
        }
        limiter.check_key(&id).map_err(|_| Error::TooManyRequests { retry_after_seconds: 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hot_id_is_limited_and_others_are_not() {
        let limit = HotLimit::new(3);
        let passed = (0..100).filter(|_| limit.check(1).is_ok()).count();
        assert!((3..10).contains(&passed), "{passed}");
        assert!(limit.check(2).is_ok());
        assert!((0..100).all(|_| HotLimit::new(0).check(1).is_ok()));
    }
}
