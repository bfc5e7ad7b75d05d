//! Runs a background task and restarts it after a panic.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::state::shared::Shared;

/// Run `task` until it ends; after a panic, log it and run it anew.
pub(crate) fn supervise<F>(
    name: &'static str,
    shared: &Arc<Shared>,
    task: impl Fn(Arc<Shared>) -> F + Send + 'static,
) -> JoinHandle<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let shared = shared.clone();
    tokio::spawn(async move {
        loop {
            match tokio::spawn(task(shared.clone())).await {
                Ok(()) => return,
                Err(error) if error.is_panic() => {
                    tracing::error!(task = name, "background task panicked; starting it again");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                // Cancelled: the runtime shuts down.
                Err(_) => return,
            }
        }
    })
}
