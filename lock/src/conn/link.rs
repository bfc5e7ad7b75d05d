//! The connection that commands go over, whatever kind of Redis is behind it.

use redis::aio::{ConnectionLike, ConnectionManager};
use redis::{Cmd, Pipeline, RedisFuture, Value};

use super::cluster::ClusterLink;
use super::sentinel::MasterLink;

/// Takes commands to the node that has to carry them out. Each call works on a clone of its own.
#[derive(Clone)]
pub(in super::super) enum Link {
    /// Reconnects by itself.
    Single(ConnectionManager),
    /// To whoever serves the command's slot.
    Cluster(ClusterLink),
    /// To whoever is the master.
    Sentinel(MasterLink),
}

impl Link {
    /// A command was not answered: its server may have been replaced.
    pub(super) fn doubt(&self) {
        match self {
            Self::Single(_) => {}
            Self::Cluster(link) => link.doubt(),
            Self::Sentinel(link) => link.doubt(),
        }
    }
}

impl ConnectionLike for Link {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::Single(manager) => manager.req_packed_command(command),
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
            Self::Single(manager) => manager.req_packed_commands(pipeline, offset, count),
            Self::Cluster(link) => Box::pin(link.pipeline(pipeline, offset, count)),
            Self::Sentinel(link) => Box::pin(link.pipeline(pipeline, offset, count)),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::Single(manager) => manager.get_db(),
            Self::Cluster(_) | Self::Sentinel(_) => 0,
        }
    }
}
