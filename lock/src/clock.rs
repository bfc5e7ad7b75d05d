//! Instants that go on while the machine is suspended. The monotonic clock, by which tasks wait, stands
//! still then; the leases on the server run out nevertheless.
//!
//! Only Linux has a clock for that (`CLOCK_BOOTTIME`). It tells nothing about a virtual machine that its
//! host stops.

use std::ops::Add;
use std::time::Duration;

use tokio::time::Instant;

#[cfg(not(test))]
pub(crate) use system::suspended;
#[cfg(test)]
pub(crate) use testing::suspended;

/// How often a wait for a deadline looks whether the machine was suspended meanwhile.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The instant, earlier by `time`.
pub(crate) fn earlier_by(at: Instant, time: Duration) -> Instant {
    at.checked_sub(time).unwrap_or(at)
}

/// An instant that a suspension brings nearer, or takes further into the past.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BootInstant {
    at: Instant,
    /// What [`suspended`] was when it was made.
    suspended: Duration,
}

impl BootInstant {
    pub(crate) fn now() -> Self {
        Self { at: Instant::now(), suspended: suspended() }
    }

    /// The same by the monotonic clock, until the next suspension.
    pub(crate) fn instant(self) -> Instant {
        earlier_by(self.at, suspended().saturating_sub(self.suspended))
    }

    /// How long it is until then; zero if it has passed.
    pub(crate) fn left(self) -> Duration {
        self.instant().saturating_duration_since(Instant::now())
    }
}

impl Add<Duration> for BootInstant {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self { at: self.at + time, ..self }
    }
}

#[cfg_attr(test, allow(dead_code))]
mod system {
    use std::time::Duration;

    /// How long the machine has been suspended since it started; never too long: if the thread is
    /// interrupted between reading the two clocks, the result is too short.
    #[cfg(target_os = "linux")]
    pub(crate) fn suspended() -> Duration {
        use rustix::time::{ClockId, clock_gettime};
        let boot = clock_gettime(ClockId::Boottime);
        let suspended = boot.checked_sub(clock_gettime(ClockId::Monotonic));
        suspended.and_then(|time| time.try_into().ok()).unwrap_or_default()
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn suspended() -> Duration {
        Duration::ZERO
    }
}

/// A machine that the unit tests suspend.
#[cfg(test)]
pub(crate) mod testing {
    use std::cell::Cell;
    use std::time::Duration;

    thread_local! {
        static SUSPENDED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    pub(crate) fn suspended() -> Duration {
        SUSPENDED.get()
    }

    /// Suspends the machine of this thread for so long.
    pub(crate) fn suspend(time: Duration) {
        SUSPENDED.set(SUSPENDED.get() + time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suspension_brings_a_boot_instant_nearer() {
        let minute = Duration::from_secs(60);
        let end = BootInstant::now() + minute;
        assert!(end.left() > minute / 2);
        testing::suspend(minute / 2);
        assert!(end.left() <= minute / 2 && end.left() > minute / 4);
        let later = BootInstant::now() + minute;
        testing::suspend(minute / 2);
        assert_eq!(end.left(), Duration::ZERO);
        assert!(later.left() > minute / 4);
    }

    /// Nobody suspends the machine during the test.
    #[test]
    fn the_system_says_how_long_it_was_suspended() {
        let before = system::suspended();
        std::thread::sleep(Duration::from_millis(20));
        let after = system::suspended();
        assert!(before.abs_diff(after) < Duration::from_secs(1), "{before:?}, then {after:?}");
    }
}
