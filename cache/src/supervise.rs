//! Background tasks that come back after a panic. A helper of the cache's own tasks, no more.

use std::future::Future;
use std::time::Duration;

use tokio_util::task::TaskTracker;

/// Run what `make` makes until it returns; after a panic, say so and make it anew. The task belongs
/// to `tasks`, which is awaited at shutdown.
pub(super) fn supervise<F>(
    tasks: &TaskTracker,
    what: &'static str,
    mut make: impl FnMut() -> F + Send + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let inner = tasks.clone();
    tasks.spawn(async move {
        loop {
            match inner.spawn(make()).await {
                Ok(()) => return,
                Err(end) if end.is_panic() => {
                    tracing::error!(task = what, "background task panicked; starting it again");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Err(_) => return,
            }
        }
    });
}
