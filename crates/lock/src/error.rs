//! Errors of lock operations. The variants differ in what the caller may assume afterwards, not in
//! what happened on the wire: "lost" and "unknown" are never one error.

use std::borrow::Cow;
use std::convert::Infallible;

use redis::RedisError;
use redis_link::AddressError;

use crate::kind::Kind;

/// Why a lock operation failed. What Redis or the connection said is the
/// [`source`](std::error::Error::source), and not part of this error's own text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name cannot be used for a lock.
    #[error("lock name {name:?}: {reason}")]
    #[non_exhaustive]
    InvalidName {
        /// The name as given.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Redis is unreachable, too slow, or not able to serve now. Nothing is known to be held; what
    /// the server may have granted is released in the background.
    #[error("lock server unavailable during {operation}")]
    #[non_exhaustive]
    Unavailable {
        /// The operation that failed.
        operation: &'static str,
        /// What caused the failure.
        #[source]
        cause: Cause,
    },
    /// The operation cannot succeed as things are, and nothing was done. Redis refused the command (the
    /// key is of another type, no permission) or the login; or an address or a certificate cannot be
    /// used; or the program has no tokio runtime or no TLS crypto provider.
    #[error("lock server refused {operation}")]
    #[non_exhaustive]
    Rejected {
        /// The operation that failed.
        operation: &'static str,
        /// What caused the failure.
        #[source]
        cause: Cause,
    },
    /// The lock was held, and lost before it was released: its lease has ended, or the server no longer
    /// knows of the hold. Nothing was changed on the server.
    #[error("the lock was lost: {0}")]
    Lost(LostReason),
    /// The owner holds the lock of this name as another kind, and cannot hold it as both, for example as
    /// a reentrant and as a fair lock. A reader that wants to write as well would wait for itself
    /// forever. Nothing was sent.
    #[error(
        "this owner holds the lock as a {held} lock; it cannot acquire it as a {wanted} lock too"
    )]
    #[non_exhaustive]
    OtherKind {
        /// The kind as which it is held.
        held: Kind,
        /// The kind that was requested.
        wanted: Kind,
    },
    /// The owner was made by another [`Locks`](crate::Locks), and its holds are counted there. Nothing
    /// was sent.
    #[error("the owner is another client's")]
    ForeignOwner,
    /// The command was sent and its reply never came, so that it may or may not have been executed.
    /// A release is finished in the background.
    #[error("outcome of {operation} unknown")]
    #[non_exhaustive]
    Unknown {
        /// The operation that failed.
        operation: &'static str,
        /// What caused the failure.
        #[source]
        cause: Cause,
    },
    /// [`Locks::shutdown`](crate::Locks::shutdown) was called.
    #[error("the locks have been shut down")]
    Closed,
}

impl Error {
    /// Whether the same call may succeed if it is made again later: only
    /// [`Unavailable`](Self::Unavailable). After [`Unknown`](Self::Unknown) the first call may have
    /// succeeded.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }
}

/// The conversion of a [`Server`](crate::Server) to itself cannot fail.
impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl From<AddressError> for Error {
    fn from(error: AddressError) -> Self {
        Self::Rejected {
            operation: "connect",
            cause: error.to_string().into(),
        }
    }
}

/// What Redis, the connection to it, or this crate said about a failure.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{text}")]
pub struct Cause {
    text: Cow<'static, str>,
    redis: Option<RedisError>,
}

impl Cause {
    /// The error of the `redis` crate, if that is the cause.
    pub fn redis_error(&self) -> Option<&RedisError> {
        self.redis.as_ref()
    }
}

/// Causes are equal if their texts are.
impl PartialEq for Cause {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Cause {}

impl From<String> for Cause {
    fn from(text: String) -> Self {
        Self {
            text: text.into(),
            redis: None,
        }
    }
}

impl From<&'static str> for Cause {
    fn from(text: &'static str) -> Self {
        Self {
            text: text.into(),
            redis: None,
        }
    }
}

impl From<RedisError> for Cause {
    fn from(error: RedisError) -> Self {
        Self {
            text: error.to_string().into(),
            redis: Some(error),
        }
    }
}

/// A lock was lost while something ran under it: see [`Guard::run`](crate::Guard::run).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the lock was lost: {0}")]
pub struct Lost(pub LostReason);

impl From<Lost> for Error {
    fn from(lost: Lost) -> Self {
        Self::Lost(lost.0)
    }
}

/// Why a held lock was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum LostReason {
    /// The lease ran out, or the key was deleted: flushed, evicted or unlocked by force.
    #[error("its key is gone")]
    Expired,
    /// Another owner holds the lock.
    #[error("another owner holds it")]
    Taken,
    /// No renewal was confirmed within the lease, so that it is unknown who holds the lock.
    #[error("it could not be renewed within its lease")]
    Unreachable,
}
