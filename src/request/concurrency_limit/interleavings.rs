//! The adaptive limit under a concurrency explorer: requests that complete while others arrive and measure. Each
//! completion counts in one measurement, and a window is measured once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use shuttle::thread;

use super::{ConcurrencyLimit, MIN_LIMIT, WEIGHT, WINDOW};
use crate::sync::atomic::Ordering;
use crate::sync::explored::explore;

/// Enough in flight for the throughput to count.
const IN_FLIGHT: u32 = 1000;
const COMPLETED: u64 = 6;

/// A bug in the measurement, to see that the explorer finds it.
#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    /// The count is read, and set to zero afterwards.
    ReadsThenClears,
    /// Whether the window is over is found out before the lock is held.
    LooksBeforeLocking,
}

fn admits(limit: &ConcurrencyLimit, now: Instant, bug: Bug) {
    match bug {
        Bug::None => {
            limit.admits(IN_FLIGHT, now);
        }
        Bug::ReadsThenClears => {
            let Some(mut measured) = limit.measured.try_lock() else { return };
            if now.saturating_duration_since(measured.at) < WINDOW {
                return;
            }
            let count = limit.completed.load(Ordering::Relaxed);
            limit.completed.store(0, Ordering::Relaxed);
            let newest = count as f64 / (now - measured.at).as_secs_f64();
            measured.at = now;
            measured.rate =
                Some(measured.rate.map_or(newest, |rate| rate + WEIGHT * (newest - rate)));
        }
        Bug::LooksBeforeLocking => {
            let elapsed = now.saturating_duration_since(limit.measured.lock().at);
            if elapsed < WINDOW {
                return;
            }
            let mut measured = limit.measured.lock();
            let newest = limit.completed.swap(0, Ordering::Relaxed) as f64 / elapsed.as_secs_f64();
            measured.at = now;
            measured.rate =
                Some(measured.rate.map_or(newest, |rate| rate + WEIGHT * (newest - rate)));
        }
    }
    let limit = limit.limit.load(Ordering::Relaxed);
    assert!((MIN_LIMIT..=2 * IN_FLIGHT).contains(&limit), "{limit}");
}

fn run(bug: Bug) {
    let limit = Arc::new(ConcurrencyLimit::new(2 * IN_FLIGHT, Duration::from_secs(1)));
    let begin = limit.measured.lock().at;
    let completing = (0..2).map(|_| {
        let limit = limit.clone();
        thread::spawn(move || (0..COMPLETED / 2).for_each(|_| limit.complete()))
    });
    let arriving = (0..2).map(|_| {
        let limit = limit.clone();
        thread::spawn(move || admits(&limit, begin + WINDOW, bug))
    });
    let threads: Vec<_> = completing.collect::<Vec<_>>().into_iter().chain(arriving).collect();
    for thread in threads {
        thread.join().expect("it ran to its end");
    }
    // Two windows: from the moving average after each, the completions that it counted.
    let rate = || limit.measured.lock().rate.expect("it was measured");
    let first = rate();
    admits(&limit, begin + 2 * WINDOW, bug);
    let second = first + (rate() - first) / WEIGHT;
    let counted = (first + second) * WINDOW.as_secs_f64();
    assert_eq!(counted.round() as u64, COMPLETED, "completions were counted");
}

#[test]
fn each_completion_counts_once() {
    explore(false, || run(Bug::None));
}

#[test]
#[should_panic(expected = "completions were counted")]
fn a_count_that_is_cleared_after_it_was_read_is_found() {
    explore(true, || run(Bug::ReadsThenClears));
}

#[test]
#[should_panic(expected = "completions were counted")]
fn a_window_that_is_measured_twice_is_found() {
    explore(true, || run(Bug::LooksBeforeLocking));
}
