//! HTTP: what handlers and the router share. The reply envelope and error responses, extractors that refuse bad input in
//! that envelope, the layers for sessions and admin writes, the per-request middleware, and the accept loop with graceful
//! shutdown. No feature is known here, and nothing below imports it.

pub mod admission;
pub mod auth;
mod client_stream;
pub mod docs;
pub mod extract;
pub mod listen;
pub mod middleware;
pub mod page;
pub mod reply;
pub mod spans;
