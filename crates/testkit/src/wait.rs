//! Polling for a condition with a time limit.

use std::convert::Infallible;
use std::time::{Duration, Instant};

/// The pause between two evaluations of the condition.
const PAUSE: Duration = Duration::from_millis(5);

/// Polls `condition` every 5 ms until it holds; `false` when it did not hold within `limit`.
pub async fn until(limit: Duration, mut condition: impl AsyncFnMut() -> bool) -> bool {
    let held = poll(limit, PAUSE, async || {
        Ok::<_, Infallible>(condition().await.then_some(()))
    });
    matches!(held.await, Ok(Some(())))
}

/// Polls `condition` as [`until`] does; panics after `limit`, naming `what`.
pub async fn eventually(what: &str, limit: Duration, condition: impl AsyncFnMut() -> bool) {
    assert!(
        until(limit, condition).await,
        "not within {limit:?}: {what}"
    );
}

/// Calls `attempt` until it returns a value, with pauses in between; `None` when it returned none within `limit`.
pub async fn poll<T, E>(
    limit: Duration,
    pause: Duration,
    mut attempt: impl AsyncFnMut() -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    let deadline = Instant::now() + limit;
    loop {
        let value = attempt().await?;
        if value.is_some() || Instant::now() >= deadline {
            return Ok(value);
        }
        tokio::time::sleep(pause).await;
    }
}
