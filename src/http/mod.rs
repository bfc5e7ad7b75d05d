//! What every handler shares: the reply envelope, the extractors that refuse bad input in that
//! envelope, the two sign-in layers, the per-request middleware, and the listener that drains.
//! Nothing here knows a feature.

pub mod address;
pub mod admission;
pub mod auth;
pub mod context;
pub mod docs;
pub mod extract;
pub mod limit;
pub mod listen;
pub mod middleware;
pub mod pace;
pub mod page;
pub mod reply;
pub mod session;
pub mod spans;
pub mod trace;
