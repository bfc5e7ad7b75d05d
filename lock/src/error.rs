//! What can go wrong with a lock. The variants differ in what the caller may believe afterwards,
//! not in what happened on the wire: "not yours", "lost" and "unknown" are never one error.

use std::fmt;

use super::kind::Kind;

/// Why a lock operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The name cannot be used for a lock.
    #[error("lock name {name:?}: {reason}")]
    InvalidName {
        /// The name as given.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Redis is away, too slow, or not able to serve now. Nothing is known to be held; if the
    /// server took the lock after all, it is given back in the background.
    #[error("lock server unavailable during {operation}: {cause}")]
    Unavailable {
        /// What was being done.
        operation: &'static str,
        /// The cause, in words.
        cause: String,
    },
    /// Redis answered and refused the command (the key is of another type, no permission).
    #[error("lock server refused {operation}: {cause}")]
    Rejected {
        /// What was being done.
        operation: &'static str,
        /// The server's words.
        cause: String,
    },
    /// The server says that this owner does not hold the lock. Nothing was changed.
    #[error("the lock is not held by this owner")]
    NotHeld,
    /// The lock was this owner's and was lost before it was given back.
    #[error("the lock was lost: {0}")]
    Lost(LostReason),
    /// The owner already holds the lock of this name in another way, and can't hold it in both: as
    /// a reentrant and as a fair lock, say, or as a reader that wants to write as well, which would
    /// wait for itself for ever. Nothing was sent.
    #[error("this owner holds the lock as a {held} lock; it cannot take it as a {wanted} lock too")]
    OtherKind {
        /// How it is held.
        held: Kind,
        /// How it was to be taken.
        wanted: Kind,
    },
    /// The command was sent and its reply never came, so that it may or may not have been carried
    /// out. A release is finished in the background.
    #[error("outcome of {operation} unknown: {cause}")]
    Unknown {
        /// What was being done.
        operation: &'static str,
        /// The cause, in words.
        cause: String,
    },
    /// The locks of this process have been shut down.
    #[error("the locks have been shut down")]
    Closed,
}

/// Why a held lock can no longer be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LostReason {
    /// The lease ran out, or the key was deleted: flushed, evicted or unlocked by force.
    Expired,
    /// Somebody else holds the lock.
    Taken,
    /// No renewal was confirmed within the lease, so that nobody can say whose it is.
    Unreachable,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its key is gone",
            Self::Taken => "somebody else holds it",
            Self::Unreachable => "it could not be renewed within its lease",
        })
    }
}
