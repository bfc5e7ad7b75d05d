//! What can go wrong with the cache. A read fails only when the *load* fails or cannot be had: a
//! Redis that fails costs a read its shortcut, never its answer.

use std::sync::Arc;

/// Why something could not be written to the cache.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The value cannot be written as JSON.
    #[error("the value cannot be written as JSON: {0}")]
    Encode(#[from] serde_json::Error),
    /// Redis is away, too slow, or was found so a moment ago. The command may have been carried
    /// out all the same.
    #[error("the cache is not available: {0}")]
    Unavailable(String),
    /// Redis answered and refused.
    #[error("the cache refused: {0}")]
    Rejected(String),
}

/// Why a read has no answer. Readers that shared one load share its error, hence the `Arc`.
#[derive(Debug, thiserror::Error)]
pub enum ReadError<E> {
    /// The load itself failed.
    #[error("the load failed: {0}")]
    Load(Arc<E>),
    /// As many loads as allowed were running for as long as a reader may wait for its turn.
    #[error("too many loads at once")]
    Overloaded,
    /// The load took longer than allowed and was given up.
    #[error("the load took too long")]
    TimedOut,
    /// The load panicked, or the process is ending. The panic itself is in the log.
    #[error("the load broke off")]
    BrokenOff,
}

// By hand: deriving would ask for `E: Clone`.
impl<E> Clone for ReadError<E> {
    fn clone(&self) -> Self {
        match self {
            Self::Load(error) => Self::Load(error.clone()),
            Self::Overloaded => Self::Overloaded,
            Self::TimedOut => Self::TimedOut,
            Self::BrokenOff => Self::BrokenOff,
        }
    }
}
