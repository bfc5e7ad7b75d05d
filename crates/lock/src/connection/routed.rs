//! [`RoutedConnection`]: a handle that sends each command to the node that has to execute it, for every kind
//! of [`Server`](crate::Server).

use std::fmt;
use std::sync::Arc;

use redis::aio::ConnectionLike;
use redis::{Cmd, Pipeline, RedisFuture, Value};

/// A connection that sends each command to the node that serves its key: the first of a script's KEYS,
/// else the command's own first key. All clones share its sockets.
///
/// A command is sent again only when it is known not to have been executed: its slot has moved (MOVED,
/// ASK, TRYAGAIN), or the connection was refused. A command whose connection broke fails, and may have
/// been executed. Each command ends within the time limit of its [`Redis`](crate::Redis), after at most
/// one attempt to connect.
///
/// On a cluster, the commands of a pipeline go to the node of each; if some fail, others may have been
/// executed. A transaction has to stay in one slot.
pub struct RoutedConnection {
    /// Each call works on a clone of its own.
    connection: Box<dyn Routes>,
    mark_stale: Arc<dyn Fn() + Send + Sync>,
}

/// What a connection has to be, without its type.
trait Routes: ConnectionLike + Send + Sync {
    fn clone_boxed(&self) -> Box<dyn Routes>;
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Routes for C {
    fn clone_boxed(&self) -> Box<dyn Routes> {
        Box::new(self.clone())
    }
}

impl RoutedConnection {
    /// Over this connection; `mark_stale` is called when a command was not answered.
    pub(crate) fn new(
        connection: impl ConnectionLike + Clone + Send + Sync + 'static,
        mark_stale: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Self { connection: Box::new(connection), mark_stale: Arc::new(mark_stale) }
    }

    /// A command was not answered: its node may have been replaced, so look it up again.
    pub(crate) fn mark_stale(&self) {
        (self.mark_stale)();
    }
}

impl Clone for RoutedConnection {
    fn clone(&self) -> Self {
        let connection = (*self.connection).clone_boxed();
        Self { connection, mark_stale: self.mark_stale.clone() }
    }
}

impl ConnectionLike for RoutedConnection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        self.connection.req_packed_command(command)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.connection.req_packed_commands(pipeline, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.connection.get_db()
    }
}

impl fmt::Debug for RoutedConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RoutedConnection")
    }
}
