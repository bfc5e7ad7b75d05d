//! Loads: calls to the source, limited in number and time, with panics caught.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::config::CacheConfig;
use crate::error::ReadError;
use crate::policy::CachePolicy;

/// Loads a value from its source.
pub(crate) type Loader<T, E> =
    Box<dyn Fn() -> BoxFuture<'static, Result<Option<T>, E>> + Send + Sync>;

/// Limits how many loads run at once and how long each may take.
pub(crate) struct LoadLimiter {
    permits: Semaphore,
    max_concurrent: usize,
    queue_timeout: Duration,
    load_timeout: Duration,
}

impl LoadLimiter {
    pub(crate) fn new(config: &CacheConfig) -> Self {
        let max_concurrent = config.max_concurrent_loads.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            permits: Semaphore::new(max_concurrent),
            max_concurrent,
            queue_timeout: config.load_queue_timeout,
            load_timeout: config.load_timeout,
        }
    }

    /// Loads running now.
    pub(crate) fn running(&self) -> usize {
        self.max_concurrent
            .saturating_sub(self.permits.available_permits())
    }

    /// Runs `loader` once a permit is free.
    pub(crate) async fn run<T, E>(
        &self,
        policy: &CachePolicy,
        loader: &Loader<T, E>,
    ) -> Result<Option<T>, ReadError<E>> {
        let outcome = self.try_run(policy, loader).await;
        if let Err(error) = &outcome {
            policy.counters.load_failures.increment();
            // The source's own error may not be displayable; the caller has it.
            let reason = match error {
                ReadError::Load(_) => "the source failed",
                ReadError::Overloaded => "too many loads at once",
                ReadError::TimedOut => "timeout",
                ReadError::Aborted => "panic",
            };
            tracing::debug!(policy = policy.name, reason, "load failed");
        }
        outcome
    }

    async fn try_run<T, E>(
        &self,
        policy: &CachePolicy,
        loader: &Loader<T, E>,
    ) -> Result<Option<T>, ReadError<E>> {
        let permit = match timeout(self.queue_timeout, self.permits.acquire()).await {
            Ok(Ok(permit)) => permit,
            // The second case, a closed semaphore, does not happen.
            Err(_) | Ok(Err(_)) => return Err(ReadError::Overloaded),
        };
        policy.counters.loads.increment();
        // The call that makes the future is inside, because it may panic as well. Going on after a panic is safe: a load
        // borrows nothing of this crate.
        let caught = AssertUnwindSafe(async { loader().await }).catch_unwind();
        let outcome = timeout(self.load_timeout, caught).await;
        drop(permit);
        match outcome {
            Ok(Ok(Ok(value))) => Ok(value),
            Ok(Ok(Err(error))) => Err(ReadError::Load(Arc::new(error))),
            Ok(Err(_)) => {
                tracing::error!(policy = policy.name, "a load panicked");
                Err(ReadError::Aborted)
            }
            Err(_) => Err(ReadError::TimedOut),
        }
    }
}
