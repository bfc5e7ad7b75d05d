//! Background tasks that come back after a panic. A helper of the lock's three tasks, no more.

use std::future::Future;
use std::time::Duration;

use tokio::task::JoinHandle;

/// Run what `make` makes until it returns; after a panic, say so and make it anew.
pub(super) fn supervise<F>(
    what: &'static str,
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
                    tracing::error!(task = what, "background task panicked; starting it again");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Err(_) => return,
            }
        }
    })
}
