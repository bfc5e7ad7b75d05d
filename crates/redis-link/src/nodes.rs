//! What is known of a Redis in use, whichever way it is run: which node takes a command, and which ones to
//! subscribe on. Methods that [`Redis`](crate::Redis) passes on are documented there.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use redis::{Client, RedisResult};
use tokio::sync::watch;

use crate::address::{Address, Channels};
use crate::node::NodeConnection;
use crate::routed::{Route, RoutedConnection};
use crate::settings::Timeouts;

/// The nodes of a Redis; all handles of an application share them. The provided methods are right for one
/// server.
pub(crate) trait Nodes: Send + Sync {
    /// A handle for commands; opens nothing yet.
    fn link(self: Arc<Self>, timeouts: Timeouts) -> RoutedConnection;

    /// The same nodes, whose [`link`](Self::link) has connections that nobody else uses.
    fn separate(self: Arc<Self>, timeouts: Timeouts) -> Arc<dyn Nodes>;

    /// A client for the node at this address. The address is a key of the map that
    /// [`assign_channels`](Self::assign_channels) returns.
    fn client(&self, address: &str) -> RedisResult<Client>;

    fn ping(&self, mut link: RoutedConnection) -> BoxFuture<'_, RedisResult<()>> {
        Box::pin(async move { redis::cmd("PING").exec_async(&mut link).await })
    }

    fn assign_channels(
        &self,
        channels: Channels,
    ) -> BoxFuture<'_, RedisResult<HashMap<Address, Channels>>> {
        Box::pin(async { Ok(HashMap::from([(Address::from(""), channels)])) })
    }

    fn serving(&self, _key: &str) -> Option<Address> {
        None
    }

    /// Look nodes up again before the next use.
    fn mark_stale(&self) {}

    fn changed(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }

    fn monitor(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }

    fn is_cluster(&self) -> bool {
        false
    }
}

/// Without the addresses, which may hold passwords.
impl fmt::Debug for dyn Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nodes")
    }
}

/// Ends at the next change. If the sender is dropped, it never ends.
pub(crate) fn change<T: Send + Sync + 'static>(
    mut watched: watch::Receiver<T>,
) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        if watched.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    })
}

pub(crate) struct Single(pub(crate) Client);

impl Nodes for Single {
    fn link(self: Arc<Self>, timeouts: Timeouts) -> RoutedConnection {
        let node = NodeConnection::new(Arc::new(self.0.clone()), timeouts);
        RoutedConnection(Route::Node(node))
    }

    fn separate(self: Arc<Self>, _timeouts: Timeouts) -> Arc<dyn Nodes> {
        self
    }

    fn client(&self, _address: &str) -> RedisResult<Client> {
        Ok(self.0.clone())
    }
}
