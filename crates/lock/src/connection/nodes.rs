//! What is known of a Redis in use, whichever way it is run: which node takes a command, and which ones to
//! subscribe on.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use redis::{Client, ErrorKind, RedisResult};

use crate::connection::address::{Address, Channels};
use crate::connection::node::{NodeConnection, Target};
use crate::connection::routed::RoutedConnection;
use crate::connection::settings::Timeouts;

/// The nodes of a Redis; all handles of an application share them. What the methods do unless they are
/// overridden is right for one server.
pub(crate) trait Nodes: Send + Sync {
    /// A handle for commands; opens nothing yet.
    fn link(self: Arc<Self>, timeouts: Timeouts) -> RoutedConnection;

    /// As [`link`](Self::link), over connections that nobody else uses.
    fn separate_link(self: Arc<Self>, timeouts: Timeouts) -> RedisResult<RoutedConnection> {
        Ok(self.link(timeouts))
    }

    /// A client for the node at this address, which is one of
    /// [`assign_channels`](Self::assign_channels).
    fn client(&self, address: &str) -> RedisResult<Client>;

    /// Succeeds when the server answers on `link`.
    fn ping(&self, mut link: RoutedConnection) -> BoxFuture<'_, RedisResult<()>> {
        Box::pin(async move { redis::cmd("PING").exec_async(&mut link).await })
    }

    /// Assign `channels` to the nodes to subscribe on, which are all masters. Channels that no node serves
    /// at the moment are left out.
    ///
    /// # Errors
    /// When no node of a cluster answers, or no sentinel knows a master.
    fn assign_channels(
        &self,
        channels: Channels,
    ) -> BoxFuture<'_, RedisResult<HashMap<Address, Channels>>> {
        Box::pin(async { Ok(HashMap::from([(Address::from(""), channels)])) })
    }

    /// The node that serves this key, as far as that is known without asking; `None` for a single server.
    fn serving(&self, _key: &str) -> Option<Address> {
        None
    }

    /// A connection broke, as it does when a node is replaced: look nodes up again before next use.
    fn mark_stale(&self) {}

    /// A future that ends when the nodes to subscribe on have changed since this call, as far as
    /// that is known.
    fn changed(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }

    /// Watch for a failover that causes no error. Never ends.
    fn monitor(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }

    /// Whether this is a cluster, which has sharded channels besides the ordinary ones.
    fn is_cluster(&self) -> bool {
        false
    }

    /// Whether further connections can be made.
    fn makes_connections(&self) -> bool {
        true
    }
}

/// Without the addresses, which may hold passwords.
impl fmt::Debug for dyn Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nodes")
    }
}

pub(crate) struct Single(pub(crate) Client);

impl Nodes for Single {
    fn link(self: Arc<Self>, timeouts: Timeouts) -> RoutedConnection {
        NodeConnection::routed(Target::Fixed(Box::new(self.0.clone())), timeouts)
    }

    fn client(&self, _address: &str) -> RedisResult<Client> {
        Ok(self.0.clone())
    }
}

/// A connection of the application's own, and what further ones are made with.
pub(crate) struct Supplied(pub(crate) RoutedConnection, pub(crate) Option<Client>);

impl Nodes for Supplied {
    fn link(self: Arc<Self>, _timeouts: Timeouts) -> RoutedConnection {
        self.0.clone()
    }

    fn separate_link(self: Arc<Self>, timeouts: Timeouts) -> RedisResult<RoutedConnection> {
        Ok(NodeConnection::routed(Target::Fixed(Box::new(self.client("")?)), timeouts))
    }

    fn client(&self, _address: &str) -> RedisResult<Client> {
        self.1.clone().ok_or_else(|| {
            let cause = "there is no client beside the supplied connection";
            (ErrorKind::InvalidClientConfig, cause).into()
        })
    }

    fn makes_connections(&self) -> bool {
        self.1.is_some()
    }
}
