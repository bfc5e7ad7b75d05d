//! The explorer's locks with the signatures of `parking_lot`'s, and what the explorations share.
//!
//! An exploration runs one scenario in thousands of interleavings. It has no timers, so that a lost wake-up leaves a task
//! asleep, which the explorer reports as a deadlock. tokio's primitives, and other crates', count as one step. Each
//! exploration has variants with a planted bug, which must fail: they show that it can find something.

use std::sync::PoisonError;
use std::task::Poll;

use shuttle::future::yield_now;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::MutexGuard;
use shuttle::{check_pct, check_random};

/// Interleavings of a scenario, half of them chosen at random, half by priorities (PCT); and of one with a planted bug,
/// which ends as soon as it is found.
const RUNS: usize = 1_000;
const RUNS_WITH_A_BUG: usize = 10_000;

/// `parking_lot::Mutex`, explored.
#[derive(Default)]
pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Mutex(shuttle::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs `scenario` in many interleavings.
pub(crate) fn explore(has_a_bug: bool, scenario: impl Fn() + Copy + Send + Sync + 'static) {
    let runs = if has_a_bug { RUNS_WITH_A_BUG } else { RUNS };
    check_random(scenario, runs / 2);
    check_pct(scenario, runs / 2, 3);
}

/// Runs a test of one interleaving, for what needs the explorer's locks only because they are built in.
pub(crate) fn once(test: fn()) {
    check_random(test, 1);
}

/// Any number of steps of other tasks, less than `most`.
pub(crate) async fn some_time(most: u32) {
    for _ in 0..thread_rng().gen_range(1..most) {
        yield_now().await;
    }
}

/// Polls `future` to its end, or, where the caller goes away, drops it after a few polls: then `None`.
pub(crate) async fn unless_dropped<T>(future: impl Future<Output = T>, drops: bool) -> Option<T> {
    let mut polls = if drops { thread_rng().gen_range(1..5) } else { usize::MAX };
    let mut future = Box::pin(future);
    std::future::poll_fn(|cx| {
        polls -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending if polls == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
