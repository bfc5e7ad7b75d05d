//! Routes each command to the node that has to execute it, for every kind of [`Server`].
//!
//! [`Server`]: crate::Server

use redis::aio::ConnectionLike;
use redis::{Cmd, Pipeline, RedisFuture, Value};

#[cfg(feature = "cluster")]
use crate::connection::cluster_link::ClusterLink;
#[cfg(feature = "sentinel")]
use crate::connection::master_link::MasterLink;
use crate::connection::shared::SharedConnection;
use crate::connection::supplied::SuppliedConnection;

/// A handle for commands. Each call works on a clone of its own.
#[derive(Clone)]
pub(crate) enum Link {
    /// To one server; reconnects by itself, and is replaced when it goes silent.
    Single(SharedConnection),
    /// The application's own.
    Supplied(SuppliedConnection),
    /// To the node that serves the command's slot.
    #[cfg(feature = "cluster")]
    Cluster(ClusterLink),
    /// To the current master.
    #[cfg(feature = "sentinel")]
    Sentinel(MasterLink),
}

impl Link {
    /// A command was not answered: its node may have been replaced, so look it up again.
    pub(crate) fn mark_stale(&self) {
        match self {
            Self::Single(_) | Self::Supplied(_) => {}
            #[cfg(feature = "cluster")]
            Self::Cluster(link) => link.mark_stale(),
            #[cfg(feature = "sentinel")]
            Self::Sentinel(link) => link.mark_stale(),
        }
    }
}

impl ConnectionLike for Link {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::Single(shared) => shared.req_packed_command(command),
            Self::Supplied(supplied) => supplied.req_packed_command(command),
            #[cfg(feature = "cluster")]
            Self::Cluster(link) => Box::pin(link.command(command)),
            #[cfg(feature = "sentinel")]
            Self::Sentinel(link) => Box::pin(link.command(command)),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::Single(shared) => shared.req_packed_commands(pipeline, offset, count),
            Self::Supplied(supplied) => supplied.req_packed_commands(pipeline, offset, count),
            #[cfg(feature = "cluster")]
            Self::Cluster(link) => Box::pin(link.pipeline(pipeline, offset, count)),
            #[cfg(feature = "sentinel")]
            Self::Sentinel(link) => Box::pin(link.pipeline(pipeline, offset, count)),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::Single(shared) => shared.get_db(),
            Self::Supplied(supplied) => supplied.get_db(),
            #[cfg(any(feature = "cluster", feature = "sentinel"))]
            _ => 0,
        }
    }
}
