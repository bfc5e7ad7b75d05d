//! Runs a background task and restarts it after a panic.

use std::future::Future;
use std::time::Duration;

use tokio::task::JoinHandle;

/// Run the future that `make` returns until it ends; after a panic, log it and run a new one.
pub(crate) fn supervise<F>(
    task: &'static str,
    mut make: impl FnMut() -> F + Send + 'static,
) -> JoinHandle<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    tokio::spawn(async move {
        loop {
            match tokio::spawn(make()).await {
                Ok(()) => return,
                Err(end) if end.is_panic() => {
                    tracing::error!(task, "background task panicked; starting it again");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Err(_) => return,
            }
        }
    })
}
