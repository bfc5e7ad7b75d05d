//! Connections to Redis: one server, a cluster, or a master monitored by Sentinel.
//!
//! - [`server`]: which Redis, as the user names it; `certificates`: those of its TLS; [`backend`]: the
//!   same in use
//! - [`command_connection`]: sends one command within a time limit ([`bounded`]) and waits for
//!   replicas ([`acknowledge`])
//! - [`link`]: routes a command to its node; `cluster`, `slots` and `sentinel` find the node
//! - [`shared`]: one connection, replaced when it goes silent; [`supplied`]: one of the application's
//! - [`pushes`]: one connection on which a node sends messages by itself
//! - [`failure`]: what is known after a command failed; [`refusals`]: channels that are not allowed
//!
//! Nothing here knows who holds which lock.

pub(crate) mod acknowledge;
pub(crate) mod address;
pub(crate) mod backend;
pub(crate) mod bounded;
#[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
pub(crate) mod certificates;
#[cfg(feature = "cluster")]
pub(crate) mod cluster;
pub(crate) mod command_connection;
pub(crate) mod failure;
pub(crate) mod link;
pub(crate) mod pushes;
pub(crate) mod refusals;
#[cfg(feature = "sentinel")]
pub(crate) mod sentinel;
pub(crate) mod server;
pub(crate) mod settings;
pub(crate) mod shared;
#[cfg(feature = "cluster")]
pub(crate) mod slots;
pub(crate) mod supplied;
