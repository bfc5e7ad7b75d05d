//! Routes each command to the node that has to execute it, for every kind of [`Server`].
//!
//! [`Server`]: crate::Server

use redis::aio::ConnectionLike;
use redis::{Cmd, Pipeline, RedisFuture, Value};

use crate::connection::cluster_link::ClusterLink;
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
    Cluster(ClusterLink),
    /// To the current master.
    Sentinel(MasterLink),
}

impl Link {
    /// A command was not answered: its node may have been replaced, so look it up again.
    pub(crate) fn mark_stale(&self) {
        match self {
            Self::Single(_) | Self::Supplied(_) => {}
            Self::Cluster(link) => link.mark_stale(),
            Self::Sentinel(link) => link.mark_stale(),
        }
    }
}

impl ConnectionLike for Link {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::Single(shared) => shared.req_packed_command(command),
            Self::Supplied(supplied) => supplied.req_packed_command(command),
            Self::Cluster(link) => Box::pin(link.command(command)),
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
            Self::Cluster(link) => Box::pin(link.pipeline(pipeline, offset, count)),
            Self::Sentinel(link) => Box::pin(link.pipeline(pipeline, offset, count)),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::Single(shared) => shared.get_db(),
            Self::Supplied(supplied) => supplied.get_db(),
            _ => 0,
        }
    }
}
