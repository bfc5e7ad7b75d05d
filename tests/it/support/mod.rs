//! Real servers for the tests. Nothing here knows what is tested.

pub mod api;
pub mod database;
pub mod instance;
pub mod proxy;
pub mod redis_cluster;
pub mod redis_sentinel;
pub mod redis_server;
pub mod stack;

use std::time::{Duration, Instant};

/// Waits until `condition` holds, or fails the test.
pub async fn eventually(what: &str, limit: Duration, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !condition().await {
        assert!(Instant::now() < deadline, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
