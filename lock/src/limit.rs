//! Waiting limits, and pauses between tries. Time only; nothing here knows a lock.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use super::Error;

/// The longest pause between two tries that got in each other's way.
const LONGEST_PAUSE: Duration = Duration::from_millis(64);

/// When a waiting limit ends; a limit past the end of time is none.
pub(super) fn ends(limit: Duration) -> Option<Instant> {
    Instant::now().checked_add(limit)
}

/// What is left of a waiting limit; `None` when it is over.
pub(super) fn left(until: Option<Instant>) -> Option<Duration> {
    let Some(until) = until else { return Some(Duration::MAX) };
    Some(until.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
}

/// Await `action`, but not past `until`.
pub(super) async fn by<T>(
    until: Option<Instant>,
    operation: &'static str,
    action: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let Some(until) = until else { return action.await };
    match timeout_at(until, action).await {
        Ok(result) => result,
        Err(_) => {
            let cause = "no answer when the waiting limit was reached".to_owned();
            Err(Error::Unavailable { operation, cause })
        }
    }
}

/// Step aside after the `tries`th try in a row that came to nothing: two that take the same locks
/// in step would refuse each other for ever. Random, and up to twice as long each time.
pub(super) async fn step_aside(tries: u32, until: Option<Instant>) {
    let longest = Duration::from_millis(1 << tries.min(6)).min(LONGEST_PAUSE);
    let pause = longest.mul_f64(rand::random());
    sleep_until(until.into_iter().fold(Instant::now() + pause, Instant::min)).await;
}
