//! Background tasks that are restarted after a panic.

use std::future::Future;
use std::time::Duration;

use tokio_util::task::TaskTracker;

/// Pause before a task that panicked is started again.
const RESTART_PAUSE: Duration = Duration::from_millis(100);

/// Spawns the future that `make` returns; if it panics, logs that and spawns a new one. The task
/// belongs to `tasks`, which is awaited at shutdown.
pub(crate) fn supervise<F>(
    tasks: &TaskTracker,
    name: &'static str,
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
                    tracing::error!(task = name, "background task panicked; restarting it");
                    tokio::time::sleep(RESTART_PAUSE).await;
                }
                Err(_) => return,
            }
        }
    });
}
