//! Invalidations: sending them to Redis and all nodes, retrying those that failed, and receiving
//! those of other nodes.

pub(crate) mod invalidator;
pub(crate) mod pending;
pub(crate) mod subscriber;
