//! Real servers for the tests, and how long a test waits for what comes by itself.

use std::time::Duration;

pub mod api;
pub mod database;
pub mod hold;
pub mod instance;
pub mod nginx;
pub mod receiver;
pub mod stack;

/// Enough on a busy machine, and for whatever a service does by itself.
pub const PATIENCE: Duration = Duration::from_secs(40);

/// Waits until the condition holds; panics after [`PATIENCE`], naming `what`.
pub async fn eventually(what: &str, condition: impl AsyncFnMut() -> bool) {
    testkit::wait::eventually(what, PATIENCE, condition).await;
}
