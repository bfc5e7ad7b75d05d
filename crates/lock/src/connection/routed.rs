//! [`RoutedConnection`]: an application's own commands on the connections of a `Redis`.

use std::fmt;

use redis::aio::ConnectionLike;
use redis::{Cmd, Pipeline, RedisFuture, Value};

use crate::connection::link::Link;

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
#[derive(Clone)]
pub struct RoutedConnection(pub(crate) Link);

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
