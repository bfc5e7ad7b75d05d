//! [`RoutedConnection`]: a handle that sends each command to the node that has to execute it, for every kind
//! of [`Server`](crate::Server).

use std::fmt;

use redis::aio::ConnectionLike;
use redis::{Cmd, Pipeline, RedisFuture, Value};

/// A connection that sends each command to the node that serves its key: the first of a script's KEYS,
/// else the command's own first key. All clones share its sockets.
///
/// A command is sent again only when it is known not to have been executed: its slot has moved (MOVED,
/// ASK, TRYAGAIN), or the connection was refused. A command whose connection broke fails, and may have
/// been executed: [`Outcome`](crate::Outcome) tells. Each command ends within the time limit of its
/// [`Redis`](crate::Redis), after at most one attempt to connect.
///
/// On a cluster, the commands of a pipeline go to the node of each; if some fail, others may have been
/// executed. A transaction has to stay in one slot.
///
/// # Cancellation
/// A future that is dropped while a command is under way leaves its outcome unknown.
pub struct RoutedConnection(Box<dyn Routes>);

/// What a connection has to be, without its type.
trait Routes: ConnectionLike + Send + Sync {
    /// Each call works on a clone of its own.
    fn clone_boxed(&self) -> Box<dyn Routes>;
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Routes for C {
    fn clone_boxed(&self) -> Box<dyn Routes> {
        Box::new(self.clone())
    }
}

impl RoutedConnection {
    pub(crate) fn new(connection: impl ConnectionLike + Clone + Send + Sync + 'static) -> Self {
        Self(Box::new(connection))
    }
}

impl Clone for RoutedConnection {
    fn clone(&self) -> Self {
        Self((*self.0).clone_boxed())
    }
}

impl ConnectionLike for RoutedConnection {
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

impl fmt::Debug for RoutedConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RoutedConnection")
    }
}
