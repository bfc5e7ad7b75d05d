//! What this process does about each sale on the stream, and what was in its way: [`SaleStates`].

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// A stuck sale is forgotten this long after its entries were to be tried again: if none came, another instance has decided
/// them.
const STUCK: Duration = Duration::from_secs(10);

/// The state of one sale; most have none.
#[derive(Default)]
struct SaleState {
    /// It is being counted, or adopted.
    is_counted: bool,
    /// The last count failed: as a rule because the sale's row was locked.
    is_locked: bool,
    /// Set if the sale's entries could not be decided: when they are tried again.
    retry_at: Option<Instant>,
}

impl SaleState {
    fn is_usual(&self) -> bool {
        !self.is_counted && !self.is_locked && self.retry_at.is_none()
    }
}

/// How the entries of a sale are to be decided.
#[derive(Debug, PartialEq)]
pub(super) enum Turn {
    /// Beside those of the other sales.
    Usual,
    /// One stuck sale at a time, without waiting for its row.
    Stuck,
    /// Not yet.
    Later,
}

/// The states of all sales.
#[derive(Default)]
pub(super) struct SaleStates(Mutex<HashMap<i64, SaleState>>);

impl SaleStates {
    fn change<T>(&self, sale: i64, change: impl FnOnce(&mut SaleState) -> T) -> T {
        let mut states = self.0.lock();
        let state = states.entry(sale).or_default();
        let changed = change(state);
        if state.is_usual() {
            states.remove(&sale);
        }
        changed
    }

    /// Begins a count; says whether none was under way.
    pub fn begin_count(&self, sale: i64) -> bool {
        self.change(sale, |state| {
            !std::mem::replace(&mut state.is_counted, true)
        })
    }

    /// Ends a count; says whether it failed and the one before did not.
    pub fn end_count(&self, sale: i64, failed: bool) -> bool {
        self.change(sale, |state| {
            state.is_counted = false;
            !std::mem::replace(&mut state.is_locked, failed) && failed
        })
    }

    /// Whether the last count failed.
    pub fn is_locked(&self, sale: i64) -> bool {
        self.0
            .lock()
            .get(&sale)
            .is_some_and(|state| state.is_locked)
    }

    /// Forgets locked sales that are neither counted nor `wanted`; returns how many of the locked ones are `closed`.
    pub fn count_locked(
        &self,
        wanted: impl Fn(&i64) -> bool,
        closed: impl Fn(&i64) -> bool,
    ) -> usize {
        let mut states = self.0.lock();
        states.retain(|sale, state| {
            state.is_locked &= state.is_counted || wanted(sale);
            !state.is_usual()
        });
        let locked = states.iter().filter(|(_, state)| state.is_locked);
        locked.filter(|(sale, _)| closed(sale)).count()
    }

    /// How entries of the sale are to be decided. If it is the turn of a stuck sale, nobody else gets one for the next `attempt`.
    pub fn turn(&self, sale: i64, attempt: Duration) -> Turn {
        let now = Instant::now();
        self.change(sale, |state| match state.retry_at {
            None => Turn::Usual,
            Some(at) if at > now => Turn::Later,
            Some(_) => {
                state.retry_at = Some(now + attempt);
                Turn::Stuck
            }
        })
    }

    /// Its entries were decided.
    pub fn decided(&self, sale: i64) {
        self.change(sale, |state| state.retry_at = None);
    }

    /// Its entries were not decided, and are tried again after `pause`; says whether the sale was not stuck before.
    pub fn not_decided(&self, sale: i64, pause: Duration) -> bool {
        let retry_at = Some(Instant::now() + pause);
        self.change(sale, |state| {
            std::mem::replace(&mut state.retry_at, retry_at).is_none()
        })
    }

    /// Forgets the stuck sales whose entries another instance seems to have decided.
    pub fn forget_old(&self) {
        self.forget_stuck(|retry_at| retry_at.elapsed() >= STUCK);
    }

    /// Forgets all stuck sales.
    pub fn forget_all(&self) {
        self.forget_stuck(|_| true);
    }

    fn forget_stuck(&self, forgets: impl Fn(&Instant) -> bool) {
        self.0.lock().retain(|_, state| {
            state.retry_at = state.retry_at.filter(|retry_at| !forgets(retry_at));
            !state.is_usual()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATTEMPT: Duration = Duration::from_secs(5);
    const PAUSE: Duration = Duration::from_secs(1);

    #[test]
    fn a_sale_is_counted_once_at_a_time_and_a_failure_is_reported_once() {
        let states = SaleStates::default();
        assert!(states.begin_count(7) && !states.begin_count(7));
        assert!(states.end_count(7, true), "it failed for the first time");
        assert!(states.is_locked(7) && states.begin_count(7));
        assert!(!states.end_count(7, true), "it was known");
        assert!(states.begin_count(7) && !states.end_count(7, false));
        assert!(!states.is_locked(7));
        assert!(
            states.0.lock().is_empty(),
            "of a sound sale nothing is kept"
        );
    }

    #[test]
    fn a_locked_sale_is_remembered_while_it_is_wanted_or_counted() {
        let states = SaleStates::default();
        for sale in [1, 2, 3] {
            states.end_count(sale, true);
        }
        states.begin_count(2);
        let closed = |sale: &i64| *sale == 1;
        assert_eq!(states.count_locked(closed, closed), 1);
        let locked = [1, 2, 3].map(|sale| states.is_locked(sale));
        assert_eq!(locked, [true, true, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stuck_sale_is_tried_by_one_after_its_pause_until_it_is_decided_or_old() {
        let states = SaleStates::default();
        assert_eq!(states.turn(7, ATTEMPT), Turn::Usual);
        assert!(states.not_decided(7, PAUSE) && !states.not_decided(7, PAUSE));
        assert_eq!(states.turn(7, ATTEMPT), Turn::Later);
        tokio::time::advance(PAUSE).await;
        assert_eq!(states.turn(7, ATTEMPT), Turn::Stuck);
        assert_eq!(states.turn(7, ATTEMPT), Turn::Later, "somebody tries it");
        states.decided(7);
        assert_eq!(states.turn(7, ATTEMPT), Turn::Usual);

        states.not_decided(7, PAUSE);
        tokio::time::advance(PAUSE + STUCK / 2).await;
        states.forget_old();
        assert_eq!(states.turn(7, ATTEMPT), Turn::Stuck);
        tokio::time::advance(ATTEMPT + STUCK).await;
        states.forget_old();
        assert_eq!(states.turn(7, ATTEMPT), Turn::Usual);
    }
}
