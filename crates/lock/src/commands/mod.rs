//! The commands on the wire: one method of [`CommandConnection`] for each script or command.
//!
//! Every command is idempotent for the same arguments, because a command whose connection broke is
//! sent again (see [`CommandConnection::bounded`]).
//!
//! [`CommandConnection`]: crate::connection::command_connection::CommandConnection

pub(crate) mod generation;
pub(crate) mod lock;
pub(crate) mod setnx;

/// The answer to a try to acquire.
pub(crate) enum Try<T> {
    Acquired(T),
    /// The lock is not free, for this many milliseconds unless it is released before. Negative: unknown.
    Refused(i64),
}
