//! Running a load: bounded in number and time, and with its panics caught. It knows neither Redis
//! nor what is loaded.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::error::ReadError;
use super::{CacheConfig, Policy};

/// Where a value comes from when no cache has it, usually one query. `None`: it does not exist.
///
/// Every closure that makes such a future is one: `move || { let store = store.clone(); async move
/// { store.find(id).await } }`. It is called again only if what it loaded was invalidated meanwhile.
pub trait Load<T, E>: Send + Sync + 'static {
    /// Load the value.
    fn load(&self) -> impl Future<Output = Result<Option<T>, E>> + Send;
}

impl<T, E, L, F> Load<T, E> for L
where
    L: Fn() -> F + Send + Sync + 'static,
    F: Future<Output = Result<Option<T>, E>> + Send,
{
    fn load(&self) -> impl Future<Output = Result<Option<T>, E>> + Send {
        self()
    }
}

/// The limits within which loads run.
pub(super) struct Loader {
    turns: Semaphore,
    max: usize,
    wait: Duration,
    limit: Duration,
}

impl Loader {
    pub(super) fn new(config: &CacheConfig) -> Self {
        let max = config.max_loads.clamp(1, Semaphore::MAX_PERMITS);
        Self { turns: Semaphore::new(max), max, wait: config.load_wait, limit: config.load_limit }
    }

    /// Loads running now.
    pub(super) fn running(&self) -> usize {
        self.max.saturating_sub(self.turns.available_permits())
    }

    /// Run `load` when its turn comes.
    pub(super) async fn run<T, E>(
        &self,
        policy: &Policy,
        load: &impl Load<T, E>,
    ) -> Result<Option<T>, ReadError<E>> {
        let outcome = self.attempt(policy, load).await;
        if let Err(error) = &outcome {
            policy.counters.0.load_failures.up();
            let why = match error {
                ReadError::Load(_) => "it failed",
                ReadError::Overloaded => "too many others were running",
                ReadError::TimedOut => "it took too long",
                ReadError::BrokenOff => "it panicked",
            };
            tracing::debug!(policy = policy.name, reason = why, "nothing loaded");
        }
        outcome
    }

    async fn attempt<T, E>(
        &self,
        policy: &Policy,
        load: &impl Load<T, E>,
    ) -> Result<Option<T>, ReadError<E>> {
        let turn = match timeout(self.wait, self.turns.acquire()).await {
            Ok(Ok(turn)) => turn,
            // The second case, a closed semaphore, does not happen.
            Err(_) | Ok(Err(_)) => return Err(ReadError::Overloaded),
        };
        policy.counters.0.loads.up();
        // What a panicking load leaves behind is its own: nothing of ours is borrowed by it. The
        // call that makes the future is inside, because it may panic as well.
        let guarded = AssertUnwindSafe(async { load.load().await }).catch_unwind();
        let outcome = timeout(self.limit, guarded).await;
        drop(turn);
        match outcome {
            Ok(Ok(Ok(value))) => Ok(value),
            Ok(Ok(Err(error))) => Err(ReadError::Load(Arc::new(error))),
            Ok(Err(_)) => {
                tracing::error!(policy = policy.name, "a load panicked");
                Err(ReadError::BrokenOff)
            }
            Err(_) => Err(ReadError::TimedOut),
        }
    }
}
