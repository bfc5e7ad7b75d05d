//! Sessions: a token held by the client, a hash in Redis under `login:token:{token}`, shared by all nodes of either
//! language. How a user signs in is not known here.
//!
//! - [`shared`](SharedSessions): sessions in Redis, each kept in this process until Redis reports its end
//!   (`invalidations.rs`); concurrent lookups share a round trip.
//! - [`process`](ProcessSessions): sessions in one process's memory, for the lab.

mod invalidations;
mod memory;
mod process;
mod shared;
mod token;
mod user;

pub use process::ProcessSessions;
pub use shared::{SessionStats, SharedSessions};
pub use token::{MAX_IN_MEMORY, SESSION_TTL, Token};
pub use user::CurrentUser;
