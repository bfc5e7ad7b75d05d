//! The connections that the application has made: for commands, and what makes one for messages.

use std::future::Future;
use std::pin::Pin;

use redis::aio::ConnectionLike;
use redis::{Client, Cmd, Pipeline, RedisFuture, RedisResult, Value};

/// Makes the connection on which invalidations are received. A [`Client`] is one server; for a cluster,
/// or a master that may be replaced, implement it on what knows the nodes.
pub trait ClientSource: Send + Sync + 'static {
    /// A client of the node on which to subscribe to `channel` now.
    fn client<'a>(
        &'a self,
        channel: &'a str,
    ) -> Pin<Box<dyn Future<Output = RedisResult<Client>> + Send + 'a>>;

    /// A future that ends when another node than at the time of this call has to be subscribed on. It is
    /// called before [`client`](Self::client). By default it never ends.
    fn moved(&self, channel: &str) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let _single_server = channel;
        Box::pin(std::future::pending())
    }

    /// The connection could not be made, or broke: the node may have been replaced.
    fn failed(&self) {}
}

impl ClientSource for Client {
    fn client<'a>(
        &'a self,
        _channel: &'a str,
    ) -> Pin<Box<dyn Future<Output = RedisResult<Client>> + Send + 'a>> {
        Box::pin(std::future::ready(Ok(self.clone())))
    }
}

/// A connection of any type. Each command is sent on a clone of its own.
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
