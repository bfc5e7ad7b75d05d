//! [`RoutedConnection`]: a handle that sends each command to the node that has to execute it, for every kind
//! of [`Server`](crate::Server).

use std::fmt;

use redis::aio::ConnectionLike;
use redis::{Cmd, Pipeline, RedisFuture, Value};

use crate::cluster_link::ClusterLink;
use crate::node::NodeConnection;

/// A connection that sends each command to the node that serves its key: the first of a script's KEYS,
/// else the command's own first key. All clones share its sockets.
///
/// A command is sent again only when it is known not to have been executed: its slot has moved (MOVED,
/// ASK, TRYAGAIN), or the connection was refused. A command whose connection broke fails, and may have
/// been executed: [`Outcome`](crate::Outcome) tells. Each command ends within the time limit of its
/// [`Redis`](crate::Redis), after at most one attempt to connect.
///
/// On a cluster, each command of a pipeline goes to its own node; if some fail, others may have been
/// executed. A transaction has to stay in one slot.
///
/// # Cancellation
/// A future that is dropped while a command is under way leaves its outcome unknown.
#[derive(Clone)]
pub struct RoutedConnection(pub(crate) Route);

#[derive(Clone)]
pub(crate) enum Route {
    /// One server, or the master behind sentinels.
    Node(NodeConnection),
    Cluster(ClusterLink),
}

impl ConnectionLike for RoutedConnection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        match &mut self.0 {
            Route::Node(node) => node.req_packed_command(command),
            Route::Cluster(cluster) => Box::pin(cluster.command(command)),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match &mut self.0 {
            Route::Node(node) => node.req_packed_commands(pipeline, offset, count),
            Route::Cluster(cluster) => Box::pin(cluster.pipeline(pipeline, offset, count)),
        }
    }

    fn get_db(&self) -> i64 {
        match &self.0 {
            Route::Node(node) => node.get_db(),
            Route::Cluster(_) => 0,
        }
    }
}

impl fmt::Debug for RoutedConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RoutedConnection")
    }
}
