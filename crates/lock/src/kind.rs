//! The kinds of [`Lock`](crate::Lock), as types and as values: `Lock<Fair>` and `Lock<Read>` share
//! the code that waits, renews and cleans up, and differ in the scripts that are run.

use std::fmt;

mod sealed {
    /// Keeps [`LockKind`](super::LockKind) to the types of this module, so that it can grow.
    pub trait Sealed {}
}

/// A lock kind as a type. Implemented by the types of this module only.
pub trait LockKind: sealed::Sealed + fmt::Debug + Copy + Send + Sync + Unpin + 'static {
    #[doc(hidden)]
    const KIND: Kind;
}

/// Each kind once: its type, its value and its name.
macro_rules! lock_kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal,)*) => {
        /// A lock kind as a value.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Kind {
            $($(#[$doc])* $kind,)*
        }

        impl Kind {
            /// Every kind, in the order of the values.
            pub(crate) const ALL: [Self; [$($name),*].len()] = [$(Self::$kind),*];

            /// The name in error messages and statistics.
            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }
        }

        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy)]
            pub enum $kind {}

            impl sealed::Sealed for $kind {}

            impl LockKind for $kind {
                const KIND: Kind = Kind::$kind;
            }
        )*
    };
}

lock_kinds! {
    /// One owner at a time, in no particular order: Redisson's `RLock`.
    Reentrant = "reentrant",
    /// Reentrant, with a fencing token that rises from holder to holder: Redisson's `RFencedLock`.
    Fenced = "fenced",
    /// One owner at a time, first come, first served: Redisson's `getFairLock`.
    Fair = "fair",
    /// The side of a read-write lock that many owners may hold: `RReadWriteLock.readLock()`.
    Read = "read",
    /// The side of a read-write lock that excludes all other owners: `RReadWriteLock.writeLock()`.
    Write = "write",
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
