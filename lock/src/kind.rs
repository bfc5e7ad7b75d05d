//! The kinds of [`Lock`](crate::Lock), as types and as values: `Lock<Fair>` and `Lock<Read>` share
//! the code that waits, renews and cleans up, and differ in the scripts that are run.

use std::fmt;

/// A lock kind as a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// See [`Reentrant`].
    Reentrant,
    /// See [`Fenced`].
    Fenced,
    /// See [`Fair`].
    Fair,
    /// See [`Read`].
    Read,
    /// See [`Write`].
    Write,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reentrant => "reentrant",
            Self::Fenced => "fenced",
            Self::Fair => "fair",
            Self::Read => "read",
            Self::Write => "write",
        })
    }
}

/// A lock kind as a type. Implemented by the types of this module only.
pub trait LockKind: Send + Sync + Unpin + 'static {
    #[doc(hidden)]
    const KIND: Kind;
}

macro_rules! lock_kind {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub enum $name {}

        impl LockKind for $name {
            const KIND: Kind = Kind::$name;
        }
    };
}

lock_kind! {
    /// One owner at a time, in no particular order: Redisson's `RLock`.
    Reentrant
}
lock_kind! {
    /// Reentrant, with a fencing token that rises from holder to holder: Redisson's `RFencedLock`.
    Fenced
}
lock_kind! {
    /// One owner at a time, first come, first served: Redisson's `getFairLock`.
    Fair
}
lock_kind! {
    /// The side of a read-write lock that many owners may hold: `RReadWriteLock.readLock()`.
    Read
}
lock_kind! {
    /// The side of a read-write lock that excludes all other owners: `RReadWriteLock.writeLock()`.
    Write
}
