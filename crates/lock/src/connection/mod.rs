//! Sends the commands of the locks over [`redis_link`]: each within a time limit, and once more if the
//! connection broke.
//!
//! - [`command_connection`]: sends one command within a time limit
//! - [`failure`]: what is known after a command failed; [`refusals`]: channels that are not allowed
//!
//! Nothing here knows who holds which lock.

pub(crate) mod command_connection;
pub(crate) mod failure;
pub(crate) mod refusals;
