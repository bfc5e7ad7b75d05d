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
    /// It is not free, for so many milliseconds unless it is released before. Negative: nobody knows.
    Refused(i64),
}
