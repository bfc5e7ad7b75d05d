//! Deadlines of waiting calls, and the random back-off between tries that got in each other's way.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

/// The longest back-off.
const MAX_BACKOFF: Duration = Duration::from_millis(64);

/// The longest pause of a waiter during an outage.
const MAX_OUTAGE_PAUSE: Duration = Duration::from_secs(1);

/// The deadline of a call that starts now; `None` if `limit` is too long for the clock.
pub(crate) fn deadline_after(limit: Duration) -> Option<Instant> {
    Instant::now().checked_add(limit)
}

/// The earlier of an instant and a deadline that may not exist.
pub(crate) fn earlier(at: Instant, deadline: Option<Instant>) -> Instant {
    deadline.map_or(at, |deadline| deadline.min(at))
}

/// Time left until a deadline; `None` when it has passed, [`Duration::MAX`] without a deadline.
pub(crate) fn time_left(deadline: Option<Instant>) -> Option<Duration> {
    let Some(deadline) = deadline else { return Some(Duration::MAX) };
    Some(deadline.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
}

/// Await `action`, but not past the deadline: `None` when it was reached first.
pub(crate) async fn until<T>(
    deadline: Option<Instant>,
    action: impl Future<Output = T>,
) -> Option<T> {
    match deadline {
        None => Some(action.await),
        Some(deadline) => timeout_at(deadline, action).await.ok(),
    }
}

/// How long a waiter pauses after the `failures`th try in a row that Redis did not answer: twice as
/// long each time, and random, so that waiters that have piled up do not come back all at once.
pub(crate) fn outage_pause(failures: u32) -> Duration {
    let longest = Duration::from_millis(25 << failures.min(6)).min(MAX_OUTAGE_PAUSE);
    longest.mul_f64(0.5 + fastrand::f64() / 2.0)
}

/// Back off after the `tries`th failed try in a row: contenders that acquire the same locks in step
/// would refuse each other forever. Random, and up to twice as long each time.
pub(crate) async fn back_off(tries: u32, deadline: Option<Instant>) {
    let longest = Duration::from_millis(1 << tries.min(6)).min(MAX_BACKOFF);
    let pause = longest.mul_f64(fastrand::f64());
    sleep_until(earlier(Instant::now() + pause, deadline)).await;
}
