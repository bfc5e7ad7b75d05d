//! Errors. A read fails only if the value has to be loaded and the load fails. A failing Redis makes
//! reads slower; it is never itself the reason why one fails.

use std::sync::Arc;

/// Why a write to the cache failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The value cannot be written as JSON.
    #[error("the value cannot be written as JSON: {0}")]
    Encode(#[from] serde_json::Error),
    /// Redis is unreachable, too slow, or the circuit breaker is open. The command may have been
    /// executed all the same.
    #[error("Redis is not available: {0}")]
    Unavailable(String),
    /// Redis answered with an error.
    #[error("Redis rejected the command: {0}")]
    Rejected(String),
}

/// Why a read has no answer. Readers that shared one load share its error, hence the `Arc`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError<E> {
    /// The loader returned an error.
    #[error("the load failed: {0}")]
    Load(Arc<E>),
    /// The load did not start: too many others were running for the whole
    /// [`load_queue_timeout`](crate::CacheConfig::load_queue_timeout).
    #[error("too many loads at once")]
    Overloaded,
    /// The load took longer than [`load_timeout`](crate::CacheConfig::load_timeout); it was dropped.
    #[error("the load timed out")]
    TimedOut,
    /// The load panicked, or the process is shutting down. The panic itself is in the log.
    #[error("the load was aborted")]
    Aborted,
}

// By hand: deriving would require `E: Clone`.
impl<E> Clone for ReadError<E> {
    fn clone(&self) -> Self {
        match self {
            Self::Load(error) => Self::Load(error.clone()),
            Self::Overloaded => Self::Overloaded,
            Self::TimedOut => Self::TimedOut,
            Self::Aborted => Self::Aborted,
        }
    }
}
