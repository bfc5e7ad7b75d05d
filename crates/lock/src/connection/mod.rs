//! Connections to Redis: one server, a cluster, or a master monitored by Sentinel.
//!
//! - [`server`]: which Redis, as the user names it; [`url`]: the same as one line of text;
//!   [`backend`]: the same in use
//! - [`redis`](self::redis): a Redis for the application's own commands
//! - [`command_connection`]: sends one command within a time limit ([`bounded`]) and waits for
//!   replicas ([`acknowledge`])
//! - [`nodes`]: which node takes a command; one server there, [`cluster`] with [`slots`], and [`sentinel`]
//! - [`routed`]: a handle for commands; [`node`]: a connection to one node, followed to its successor;
//!   [`cluster_link`]: follows redirects
//! - [`pushes`]: one connection on which a node sends messages by itself
//! - [`failure`]: what is known after a command failed; [`refusals`]: channels that are not allowed
//!
//! Nothing here knows who holds which lock.

pub(crate) mod acknowledge;
pub(crate) mod address;
pub(crate) mod backend;
pub(crate) mod bounded;
pub(crate) mod cluster;
pub(crate) mod cluster_link;
pub(crate) mod command_connection;
pub(crate) mod failure;
pub(crate) mod node;
pub(crate) mod nodes;
pub(crate) mod pushes;
pub(crate) mod redis;
pub(crate) mod refusals;
pub(crate) mod routed;
pub(crate) mod sentinel;
pub(crate) mod server;
pub(crate) mod settings;
pub(crate) mod slots;
pub(crate) mod url;
