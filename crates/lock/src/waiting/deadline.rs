//! Deadlines of waiting calls, and the random back-off between tries that got in each other's way.

use std::time::Duration;

use tokio::time::Instant;

use crate::config::LONGEST;

/// The longest back-off.
const MAX_BACKOFF: Duration = Duration::from_millis(64);

/// The longest pause of a waiter during an outage.
const MAX_OUTAGE_PAUSE: Duration = Duration::from_secs(1);

/// The deadline of a call that starts now: a year away at the latest. A call without a limit then waits
/// anew.
pub(crate) fn deadline_after(limit: Duration) -> Instant {
    Instant::now() + limit.min(LONGEST)
}

/// How long a waiter pauses after the `failures`th try in a row that Redis did not answer: twice as
/// long each time, and random, so that waiters that have piled up do not come back all at once.
pub(crate) fn outage_pause(failures: u32) -> Duration {
    let longest = Duration::from_millis(25 << failures.min(6)).min(MAX_OUTAGE_PAUSE);
    longest.mul_f64(0.5 + fastrand::f64() / 2.0)
}

/// The pause after the `tries`th failed try in a row: contenders that acquire the same locks in step
/// would refuse each other forever. Random, and up to twice as long each time.
pub(crate) fn back_off(tries: u32) -> Duration {
    let longest = Duration::from_millis(1 << tries.min(6)).min(MAX_BACKOFF);
    longest.mul_f64(fastrand::f64())
}
