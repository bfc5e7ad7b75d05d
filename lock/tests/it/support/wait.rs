//! Waiting for a condition with a limit.

use std::time::{Duration, Instant};

/// Polls `condition` every 5 ms until it holds; panics after `limit`, naming `what`.
pub async fn eventually(what: &str, limit: Duration, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !condition().await {
        assert!(Instant::now() < deadline, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
