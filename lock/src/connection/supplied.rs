//! A connection that the application has made, and shares with the locks.

use std::fmt;

use redis::aio::ConnectionLike;
use redis::{Cmd, Pipeline, RedisFuture, Value};

/// A connection of any type. Each call works on a clone of its own.
pub(crate) struct SuppliedConnection(Box<dyn Shared>);

/// What a connection has to be, without its type.
trait Shared: ConnectionLike + Send + Sync {
    fn clone_boxed(&self) -> Box<dyn Shared>;
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Shared for C {
    fn clone_boxed(&self) -> Box<dyn Shared> {
        Box::new(self.clone())
    }
}

impl SuppliedConnection {
    pub(crate) fn new(connection: impl ConnectionLike + Clone + Send + Sync + 'static) -> Self {
        Self(Box::new(connection))
    }
}

impl Clone for SuppliedConnection {
    fn clone(&self) -> Self {
        Self((*self.0).clone_boxed())
    }
}

impl fmt::Debug for SuppliedConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SuppliedConnection")
    }
}

impl ConnectionLike for SuppliedConnection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        (*self.0).req_packed_command(command)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        (*self.0).req_packed_commands(pipeline, offset, count)
    }

    fn get_db(&self) -> i64 {
        (*self.0).get_db()
    }
}
