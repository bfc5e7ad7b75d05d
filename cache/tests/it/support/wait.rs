//! Polling for a condition with a time limit.

use std::time::{Duration, Instant};

/// The pause between two evaluations of the condition.
const PAUSE: Duration = Duration::from_millis(5);

/// Polls `condition` every 5 ms until it holds; `false` when it did not hold within `limit`.
pub async fn until(limit: Duration, mut condition: impl AsyncFnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    while !condition().await {
        if Instant::now() >= deadline {
            return false;
        }
        tokio::time::sleep(PAUSE).await;
    }
    true
}

/// Polls `condition` as [`until`] does; panics after `limit`, naming `what`.
pub async fn eventually(what: &str, limit: Duration, condition: impl AsyncFnMut() -> bool) {
    assert!(until(limit, condition).await, "not within {limit:?}: {what}");
}
