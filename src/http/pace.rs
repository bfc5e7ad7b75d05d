//! How many may be in so that nobody waits longer than is of use. By Little's law that is the rate at which
//! they come out, times the wait that is allowed: a service that slows down, because its database does,
//! lets fewer in, instead of having them all wait until they fail.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// From one measurement of the rate to the next.
const WINDOW: Duration = Duration::from_millis(100);

/// Share of the newest window in the rate.
const WEIGHT: f64 = 0.3;

/// This many are always let in: with fewer, there would not be enough at work to measure.
pub const FLOOR: u32 = 256;

/// The bound, as it follows the rate.
pub struct Pace {
    most: u32,
    wait: Duration,
    bound: AtomicU32,
    /// Who has come out since the last measurement.
    done: AtomicU64,
    measured: Mutex<Measured>,
}

struct Measured {
    at: Instant,
    /// A second; `None` while so few are in that the rate is theirs and not the service's.
    rate: Option<f64>,
}

impl Pace {
    /// At most `most`, and no more than come out within `wait`.
    pub fn new(most: u32, wait: Duration) -> Self {
        let measured = Mutex::new(Measured { at: Instant::now(), rate: None });
        Pace { most, wait, bound: most.into(), done: 0.into(), measured }
    }

    /// Somebody came out.
    pub fn done(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether one more may come in, where `inside` are in at `now`.
    pub fn admits(&self, inside: u32, now: Instant) -> bool {
        self.measure(inside, now);
        inside < self.bound.load(Ordering::Relaxed)
    }

    fn measure(&self, inside: u32, now: Instant) {
        let mut measured = match self.measured.try_lock() {
            Ok(measured) => measured,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
            // Somebody else is at it.
            Err(std::sync::TryLockError::WouldBlock) => return,
        };
        let elapsed = now.saturating_duration_since(measured.at);
        if elapsed < WINDOW {
            return;
        }
        let newest = self.done.swap(0, Ordering::Relaxed) as f64 / elapsed.as_secs_f64();
        measured.at = now;
        measured.rate = (inside >= FLOOR).then(|| match measured.rate {
            Some(rate) => rate + WEIGHT * (newest - rate),
            None => newest,
        });
        let bound = match measured.rate {
            Some(rate) => (rate * self.wait.as_secs_f64()) as u32,
            // Nobody waits long: a sale may begin at any moment.
            None => self.most,
        };
        self.bound.store(bound.max(FLOOR).min(self.most), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets `rate` a second come out for `windows` windows while `inside` are in; returns the bound.
    fn run(pace: &Pace, now: &mut Instant, inside: u32, rate: u64, windows: u32) -> u32 {
        for _ in 0..windows {
            (0..rate / 10).for_each(|_| pace.done());
            *now += WINDOW;
            pace.admits(inside, *now);
        }
        pace.bound.load(Ordering::Relaxed)
    }

    #[test]
    fn the_bound_is_what_comes_out_within_the_wait() {
        let mut now = Instant::now();
        let pace = Pace::new(1024, Duration::from_secs(1));
        assert!(pace.admits(1023, now), "a sale that begins");
        assert!(!pace.admits(1024, now));
        let bound = run(&pace, &mut now, 1000, 600, 30);
        assert!((590..=600).contains(&bound), "{bound}");
        assert!(pace.admits(580, now) && !pace.admits(600, now));
        // Never below the floor, never above the most.
        assert_eq!(run(&pace, &mut now, 1000, 0, 50), FLOOR);
        assert_eq!(run(&pace, &mut now, 1000, 9000, 50), 1024);
        // A bound that is lower than the floor is a bound.
        assert!(!Pace::new(2, Duration::from_secs(1)).admits(2, now));
    }

    #[test]
    fn few_who_come_slowly_do_not_lower_it() {
        let mut now = Instant::now();
        let pace = Pace::new(1024, Duration::from_secs(1));
        assert_eq!(run(&pace, &mut now, 5, 10, 50), 1024);
        assert_eq!(run(&pace, &mut now, 900, 300, 50), 300);
        assert_eq!(run(&pace, &mut now, 5, 10, 1), 1024);
    }
}
