//! Adaptive concurrency limit, by Little's law: as many requests may be in flight as are completed within the longest
//! wait that is of use. A service that slows down, because its database does, admits fewer requests, instead of letting
//! all of them wait until they fail.

use std::time::{Duration, Instant};

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// From one measurement of the throughput to the next.
const WINDOW: Duration = Duration::from_millis(100);

/// Weight of the newest window in the moving average.
const WEIGHT: f64 = 0.3;

/// The limit never falls below this many: with fewer in flight, there would not be enough to measure.
pub const MIN_LIMIT: u32 = 256;

/// The limit, which follows the measured throughput.
pub struct ConcurrencyLimit {
    max: u32,
    max_wait: Duration,
    limit: AtomicU32,
    begun: Instant,
    /// When to measure again, in µs since it began: until then the mutex is left alone.
    due_us: AtomicU64,
    /// Requests completed since the last measurement.
    completed: AtomicU64,
    measured: Mutex<Throughput>,
}

struct Throughput {
    at: Instant,
    /// Completions a second; `None` while so few are in flight that the rate is that of the arrivals.
    rate: Option<f64>,
}

impl ConcurrencyLimit {
    /// At most `max` in flight, and no more than are completed within `max_wait`.
    pub fn new(max: u32, max_wait: Duration) -> Self {
        let begun = Instant::now();
        ConcurrencyLimit {
            max,
            max_wait,
            limit: max.into(),
            begun,
            due_us: 0.into(),
            completed: 0.into(),
            measured: Mutex::new(Throughput { at: begun, rate: None }),
        }
    }

    /// Counts a completed request.
    pub fn complete(&self) {
        self.completed.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether one more request may start, where `in_flight` are at work at `now`.
    pub fn admits(&self, in_flight: u32, now: Instant) -> bool {
        self.measure(in_flight, now);
        in_flight < self.limit.load(Ordering::Relaxed)
    }

    fn measure(&self, in_flight: u32, now: Instant) {
        let now_us = now.saturating_duration_since(self.begun).as_micros() as u64;
        if now_us < self.due_us.load(Ordering::Relaxed) {
            return;
        }
        // Without the lock, another thread is measuring.
        let Some(mut measured) = self.measured.try_lock() else { return };
        let elapsed = now.saturating_duration_since(measured.at);
        if elapsed < WINDOW {
            return;
        }
        let newest = self.completed.swap(0, Ordering::Relaxed) as f64 / elapsed.as_secs_f64();
        measured.at = now;
        self.due_us.store(now_us + WINDOW.as_micros() as u64, Ordering::Relaxed);
        measured.rate = (in_flight >= MIN_LIMIT).then(|| match measured.rate {
            Some(rate) => rate + WEIGHT * (newest - rate),
            None => newest,
        });
        let limit = match measured.rate {
            Some(rate) => (rate * self.max_wait.as_secs_f64()) as u32,
            // No request waits long: a sale may begin at any moment.
            None => self.max,
        };
        self.limit.store(limit.max(MIN_LIMIT).min(self.max), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::explored::once;

    /// Completes `rate` requests a second for `windows` windows while `in_flight` are at work; returns the limit.
    fn run(
        limit: &ConcurrencyLimit,
        now: &mut Instant,
        in_flight: u32,
        rate: u64,
        windows: u32,
    ) -> u32 {
        for _ in 0..windows {
            (0..rate / 10).for_each(|_| limit.complete());
            *now += WINDOW;
            limit.admits(in_flight, *now);
        }
        limit.limit.load(Ordering::Relaxed)
    }

    #[test]
    fn the_limit_is_what_is_completed_within_the_wait() {
        once(|| {
            let mut now = Instant::now();
            let limit = ConcurrencyLimit::new(1024, Duration::from_secs(1));
            assert!(limit.admits(1023, now), "a sale that begins");
            assert!(!limit.admits(1024, now));
            let measured = run(&limit, &mut now, 1000, 600, 30);
            assert!((590..=600).contains(&measured), "{measured}");
            assert!(limit.admits(580, now) && !limit.admits(600, now));
            // Never below the minimum, never above the maximum.
            assert_eq!(run(&limit, &mut now, 1000, 0, 50), MIN_LIMIT);
            assert_eq!(run(&limit, &mut now, 1000, 9000, 50), 1024);
            // A configured maximum may be lower than the minimum.
            assert!(!ConcurrencyLimit::new(2, Duration::from_secs(1)).admits(2, now));
        });
    }

    #[test]
    fn few_and_slow_arrivals_do_not_lower_the_limit() {
        once(|| {
            let mut now = Instant::now();
            let limit = ConcurrencyLimit::new(1024, Duration::from_secs(1));
            assert_eq!(run(&limit, &mut now, 5, 10, 50), 1024);
            assert_eq!(run(&limit, &mut now, 900, 300, 50), 300);
            assert_eq!(run(&limit, &mut now, 5, 10, 1), 1024);
        });
    }
}

#[cfg(test)]
mod interleavings;
