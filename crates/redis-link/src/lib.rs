//! Connections to Redis: one server, a cluster, or a master that Sentinel monitors.
#![doc = include_str!("../README.md")]
//!
//! # Map of the source
//! - `server`, `url`: which Redis to use, as the user names it; `link`: the handle of that Redis
//! - `nodes`: what is known of its nodes, and the case of one server; the others are `cluster` with `slots`, and
//!   `sentinel`
//! - `routed`: the handle for commands; `cluster_link`: sends each to its node, and follows redirects
//! - `node`: a connection to one node; `pushes`: one on which a node sends messages by itself
//! - `outcome`: what is known after a command failed

#![warn(clippy::missing_errors_doc)]

mod address;
mod cluster;
mod cluster_link;
mod cluster_nodes;
mod link;
mod node;
mod nodes;
mod outcome;
mod pushes;
mod routed;
mod sentinel;
mod server;
mod settings;
mod slots;
mod url;

pub use redis;

pub use crate::address::{Address, Channels};
pub use crate::link::Redis;
pub use crate::outcome::Outcome;
pub use crate::pushes::{PushConnection, Unusable};
pub use crate::routed::RoutedConnection;
pub use crate::server::{AddressError, Server};
