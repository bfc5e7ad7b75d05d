//! What this node knows of a sale's pool of units, on the strategy `unit-rows` (the SQL is in `order/store/units.rs`):
//! whether a unit may be free, and refills as a single flight. At most one purchase of the node refills, on one connection;
//! those that need the refill as well wait for it without one, and share its outcome.
//!
//! An outcome is shared only with those who looked at the pool before that refill began: "nothing is left" was then
//! found after they came.

use parking_lot::Mutex;

use crate::error::Error;

/// The pool of one sale, as this node knows it.
#[derive(Debug, Default)]
pub struct UnitPool {
    state: Mutex<State>,
    /// Held by the purchase that refills.
    refilling: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    first: Option<u64>,
    /// Refills that were begun.
    begun: u64,
    /// The last refill that ended, by its number, and its outcome.
    ended: Option<(u64, Result<Option<u64>, Error>)>,
}

/// What was known at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// No free unit is known to have a lower id; `None` where none is known to be free, as at the beginning.
    pub first: Option<u64>,
    begun: u64,
}

impl UnitPool {
    /// What is known now.
    pub fn look(&self) -> Look {
        let state = self.state.lock();
        Look { first: state.first, begun: state.begun }
    }

    /// The database has no free unit, as a purchase found that began after `look`.
    pub fn found_none(&self, look: Look) {
        let mut state = self.state.lock();
        // Otherwise it may have found none before the refill.
        if state.begun == look.begun {
            state.first = None;
        }
    }

    /// The outcome of a refill that began after `look`: the first unit that may be free, or `None` where nothing is left.
    /// That of another purchase, if there is one; else this one runs `refill`.
    ///
    /// # Cancellation
    /// Dropped, it drops `refill`, and the next in turn begins its own.
    pub async fn refill(
        &self,
        look: Look,
        refill: impl Future<Output = Result<Option<u64>, Error>>,
    ) -> Result<Option<u64>, Error> {
        let _single_flight = self.refilling.lock().await;
        let number = {
            let mut state = self.state.lock();
            if let Some((number, outcome)) = &state.ended
                && *number > look.begun
            {
                return outcome.clone();
            }
            state.begun += 1;
            state.begun
        };
        let outcome = refill.await;
        let mut state = self.state.lock();
        if let Ok(first) = outcome {
            state.first = first;
        }
        state.ended = Some((number, outcome.clone()));
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    use futures_util::future::join_all;
    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn those_who_looked_before_share_a_refill_and_later_ones_do_not() {
        let (pool, refills) = (UnitPool::default(), AtomicU64::new(0));
        let refill = async || {
            let number = refills.fetch_add(1, SeqCst) + 1;
            yield_now().await;
            Ok((number < 3).then_some(number))
        };
        let first = pool.look();
        assert_eq!(first.first, None, "a new sale's pool is empty");
        let (shared, late) = tokio::join!(
            join_all((0..9).map(|_| pool.refill(first, refill()))),
            // The first refill is under way.
            async { pool.refill(pool.look(), refill()).await },
        );
        assert!(shared.iter().all(|outcome| matches!(outcome, Ok(Some(1 | 2)))), "{shared:?}");
        assert!(matches!(late, Ok(Some(2))), "{late:?}");
        assert_eq!((refills.load(SeqCst), pool.look().first), (2, Some(2)));
        // Whoever looked before that refill knows nothing of its units.
        pool.found_none(first);
        assert_eq!(pool.look().first, Some(2));
        pool.found_none(pool.look());
        assert_eq!(pool.look().first, None);
        assert!(matches!(pool.refill(pool.look(), refill()).await, Ok(None)));
        assert_eq!(pool.look().first, None);
    }

    #[tokio::test]
    async fn a_refill_that_fails_or_is_dropped_leaves_the_pool_unknown() {
        let pool = UnitPool::default();
        let look = pool.look();
        let failed = pool.refill(look, async { Err(Error::Conflict) }).await;
        let shared = pool.refill(look, async { unreachable!("it is shared") }).await;
        assert!(matches!((failed, shared), (Err(Error::Conflict), Err(Error::Conflict))));
        let look = pool.look();
        let dropped = async {
            tokio::select! {
                biased;
                _ = pool.refill(look, std::future::pending()) => unreachable!(),
                () = yield_now() => {}
            }
        };
        dropped.await;
        assert!(matches!(pool.refill(look, async { Ok(Some(7)) }).await, Ok(Some(7))));
    }
}
