//! The members of the lock family that have an owner and a hold, as types: `Lock<Fair>` and
//! `Guard<Fair>` differ from `Lock<Read>` and `Guard<Read>` in the scripts that are run, not in
//! the code that waits, renews and cleans up. What differs on the wire is in `claim` and
//! `commands`.

use std::fmt;

/// Which of the family, where the code asks at run time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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

/// A member of the family. Implemented by the types of this module only.
pub trait Member: Send + Sync + Unpin + 'static {
    #[doc(hidden)]
    const KIND: Kind;
}

macro_rules! member {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub enum $name {}

        impl Member for $name {
            const KIND: Kind = Kind::$name;
        }
    };
}

member! {
    /// One owner at a time, in no particular order: Redisson's `RLock`.
    Reentrant
}
member! {
    /// The same with a number that rises from holder to holder: Redisson's `RFencedLock`.
    Fenced
}
member! {
    /// One owner at a time, first come, first served: Redisson's `RLock` by `getFairLock`.
    Fair
}
member! {
    /// The side of a read-write lock that many may hold: `RReadWriteLock.readLock()`.
    Read
}
member! {
    /// The side of a read-write lock that excludes all others: `RReadWriteLock.writeLock()`.
    Write
}
