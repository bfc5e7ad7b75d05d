//! A handle that routes each command to the node that has to execute it, for every kind of
//! [`Server`](crate::Server).

use std::fmt;

use redis::aio::ConnectionLike;
use redis::{Cmd, Pipeline, RedisFuture, Value};

use crate::connection::cluster_link::ClusterLink;
use crate::connection::node::NodeConnection;

/// A connection of any type. Each call works on a clone of its own.
pub(crate) struct Link(Box<dyn Routes>);

/// What a connection has to be, without its type.
trait Routes: ConnectionLike + Send + Sync {
    fn clone_boxed(&self) -> Box<dyn Routes>;
    fn mark_stale(&self);
}

/// A connection that the application has made. It is never replaced.
#[derive(Clone)]
struct Foreign<C>(C);

impl Routes for NodeConnection {
    fn clone_boxed(&self) -> Box<dyn Routes> {
        Box::new(self.clone())
    }

    fn mark_stale(&self) {
        self.mark_stale();
    }
}

impl Routes for ClusterLink {
    fn clone_boxed(&self) -> Box<dyn Routes> {
        Box::new(self.clone())
    }

    fn mark_stale(&self) {
        self.mark_stale();
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Routes for Foreign<C> {
    fn clone_boxed(&self) -> Box<dyn Routes> {
        Box::new(self.clone())
    }

    fn mark_stale(&self) {}
}

impl<C: ConnectionLike> ConnectionLike for Foreign<C> {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        self.0.req_packed_command(command)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.0.req_packed_commands(pipeline, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.0.get_db()
    }
}

impl Link {
    /// To one node.
    pub(crate) fn node(connection: NodeConnection) -> Self {
        Self(Box::new(connection))
    }

    /// To the nodes of a cluster.
    pub(crate) fn cluster(link: ClusterLink) -> Self {
        Self(Box::new(link))
    }

    /// Over a connection that the application has made.
    pub(crate) fn supplied(
        connection: impl ConnectionLike + Clone + Send + Sync + 'static,
    ) -> Self {
        Self(Box::new(Foreign(connection)))
    }

    /// A command was not answered: its node may have been replaced, so look it up again.
    pub(crate) fn mark_stale(&self) {
        self.0.mark_stale();
    }
}

impl Clone for Link {
    fn clone(&self) -> Self {
        Self(self.0.clone_boxed())
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Link")
    }
}

impl ConnectionLike for Link {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        self.0.req_packed_command(command)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.0.req_packed_commands(pipeline, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.0.get_db()
    }
}
