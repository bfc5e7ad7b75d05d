//! Connections to Redis: one server, a cluster, or a master monitored by Sentinel.
//!
//! - [`server`]: which Redis, as the user names it; [`url`]: the same as one line of text;
//!   `certificates`: those of its TLS; [`backend`]: the same in use; [`nodes`]: what is known of its nodes
//! - [`redis`](self::redis): a Redis for the application's own commands, which are sent by [`routed`]
//! - [`command_connection`]: sends one command within a time limit ([`bounded`]) and waits for
//!   replicas ([`acknowledge`])
//! - [`link`]: routes a command to its node; `cluster`, `slots` and `sentinel` find the node;
//!   `cluster_link` follows redirects, `master_link` a failover
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
pub(crate) mod cluster;
pub(crate) mod cluster_link;
pub(crate) mod command_connection;
pub(crate) mod failure;
pub(crate) mod link;
pub(crate) mod master_link;
pub(crate) mod nodes;
pub(crate) mod pushes;
pub(crate) mod redis;
pub(crate) mod refusals;
pub(crate) mod routed;
pub(crate) mod sentinel;
pub(crate) mod server;
pub(crate) mod settings;
pub(crate) mod shared;
pub(crate) mod slots;
pub(crate) mod supplied;
pub(crate) mod url;
