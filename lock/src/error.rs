//! Errors of lock operations. The variants differ in what the caller may assume afterwards, not in
//! what happened on the wire: "not held", "lost" and "unknown" are never one error.

use std::fmt;

use crate::kind::Kind;

/// Why a lock operation failed.
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
    #[error("lock server unavailable during {operation}: {cause}")]
    #[non_exhaustive]
    Unavailable {
        /// The operation that failed.
        operation: &'static str,
        /// The cause, in words.
        cause: String,
    },
    /// Redis refused the command (the key is of another type, no permission).
    #[error("lock server refused {operation}: {cause}")]
    #[non_exhaustive]
    Rejected {
        /// The operation that failed.
        operation: &'static str,
        /// The server's error message.
        cause: String,
    },
    /// The server says that this owner does not hold the lock. Nothing was changed.
    #[error("the lock is not held by this owner")]
    NotHeld,
    /// The owner held the lock and lost it before releasing it.
    #[error("the lock was lost: {0}")]
    Lost(LostReason),
    /// The owner holds the lock of this name as another kind, and cannot hold it as both: as a
    /// reentrant and as a fair lock, say, or as a reader that wants to write as well, which would
    /// wait for itself forever. Nothing was sent.
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
    /// The command was sent and its reply never came, so that it may or may not have been executed.
    /// A release is finished in the background.
    #[error("outcome of {operation} unknown: {cause}")]
    #[non_exhaustive]
    Unknown {
        /// The operation that failed.
        operation: &'static str,
        /// The cause, in words.
        cause: String,
    },
    /// [`Locks::shutdown`](crate::Locks::shutdown) was called.
    #[error("the locks have been shut down")]
    Closed,
}

/// Why a held lock was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// The lease ran out, or the key was deleted: flushed, evicted or unlocked by force.
    Expired,
    /// Another owner holds the lock.
    Taken,
    /// No renewal was confirmed within the lease, so that it is unknown who holds the lock.
    Unreachable,
    /// It was held for the longest time that is allowed:
    /// [`LockConfig::with_max_hold`](crate::LockConfig::with_max_hold).
    MaxHold,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its key is gone",
            Self::Taken => "another owner holds it",
            Self::Unreachable => "it could not be renewed within its lease",
            Self::MaxHold => "it was held for the longest time allowed",
        })
    }
}
