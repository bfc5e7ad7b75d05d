//! [`Redis`]: one Redis for the whole application, whichever way it is run.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::{AsyncConnectionConfig, Client, ErrorKind, ProtocolVersion, RedisResult};
use tokio::sync::mpsc::unbounded_channel;

use crate::address::{Address, Channels};
use crate::cluster::Cluster;
use crate::nodes::{Nodes, Single};
use crate::pushes::{PushConnection, Unusable};
use crate::routed::RoutedConnection;
use crate::sentinel::Master;
use crate::server::{AddressError, Server, Topology};
use crate::settings::Timeouts;

/// A Redis for an application's commands, whichever way it is run: one server, a cluster, or a master
/// that Sentinel monitors. Clones are cheap: they share the connections, and what is known of the
/// servers, such as a cluster's slot table or the present master.
#[derive(Debug, Clone)]
pub struct Redis {
    nodes: Arc<dyn Nodes>,
    timeouts: Timeouts,
    commands: RoutedConnection,
}

impl Redis {
    /// Makes no connection yet: the first command does. `connect_timeout` is for opening a connection,
    /// TLS and login included, `command_timeout` for each command; at least 10 ms each. If `server` is
    /// another `Redis`, both share its nodes.
    ///
    /// # Errors
    /// When an address cannot be used, or TLS has no crypto provider.
    pub fn new(
        server: impl Into<Server>,
        connect_timeout: Duration,
        command_timeout: Duration,
    ) -> Result<Self, AddressError> {
        let timeouts = Timeouts::new(connect_timeout, command_timeout);
        let Server { nodes, topology } = server.into();
        #[cfg(feature = "tls-rustls")]
        nodes.iter().try_for_each(crate::settings::check_tls)?;
        let tcp = timeouts.tcp();
        let nodes: Vec<_> = nodes
            .into_iter()
            .map(|node| node.set_tcp_settings(tcp.clone()))
            .collect();
        let nodes: Arc<dyn Nodes> = match topology {
            Topology::Single => {
                let node = nodes.into_iter().next();
                Arc::new(Single(Client::open(
                    node.ok_or(AddressError::new("no address"))?,
                )?))
            }
            Topology::Cluster => Arc::new(Cluster::new(nodes, timeouts)),
            Topology::Sentinel(master, login) => {
                Arc::new(Master::new(nodes, master, login, timeouts.connect)?)
            }
            Topology::Shared(nodes) => nodes,
        };
        Ok(Self::over(nodes, timeouts))
    }

    fn over(nodes: Arc<dyn Nodes>, timeouts: Timeouts) -> Self {
        Self {
            commands: nodes.clone().link(timeouts),
            nodes,
            timeouts,
        }
    }

    /// The same Redis with another time limit for commands. It has connections of its own, so it also
    /// serves for commands that block their connection, such as WAIT.
    #[must_use]
    pub fn with_command_timeout(&self, command_timeout: Duration) -> Self {
        let timeouts = Timeouts::new(self.timeouts.connect, command_timeout);
        Self::over(self.nodes.clone().separate(timeouts), timeouts)
    }

    /// The connection for commands.
    pub fn commands(&self) -> RoutedConnection {
        self.commands.clone()
    }

    /// Succeeds when the server answers within the time limit of commands; of a cluster, any master.
    ///
    /// # Errors
    /// When none does.
    ///
    /// # Cancellation
    /// Can be dropped.
    pub async fn ping(&self) -> RedisResult<()> {
        self.nodes.ping(self.commands()).await
    }

    /// A client of the node that serves `key` now, for a connection of one's own: for messages, or
    /// reads that block. Any channel's name will do as the key. When such a connection breaks, or
    /// answers READONLY or MOVED, call [`recheck`](Self::recheck), then this again. When
    /// [`moved`](Self::moved) ends, call this again.
    ///
    /// # Errors
    /// When no node serves the key, or no sentinel knows a master.
    ///
    /// # Cancellation
    /// Can be dropped.
    pub async fn client_of(&self, key: &str) -> RedisResult<Client> {
        let assigned = self.assign_channels(Channels::from([key.into()])).await?;
        let serving = assigned.iter().find(|(_, keys)| !keys.is_empty());
        let Some((address, _)) = serving else {
            return Err((
                ErrorKind::ClusterConnectionNotFound,
                "no node serves this slot",
            )
                .into());
        };
        self.nodes.client(address)
    }

    /// A client of every master: one, or those of a cluster.
    ///
    /// # Errors
    /// As [`client_of`](Self::client_of).
    ///
    /// # Cancellation
    /// Can be dropped.
    pub async fn masters(&self) -> RedisResult<Vec<Client>> {
        let assigned = self.assign_channels(Channels::new()).await?;
        assigned
            .keys()
            .map(|address| self.nodes.client(address))
            .collect()
    }

    /// Assigns `channels`, or keys, to the masters that serve them. Masters without one have an empty set;
    /// channels that no node serves at the moment are left out.
    ///
    /// # Errors
    /// When no node of a cluster answers, or no sentinel knows a master.
    ///
    /// # Cancellation
    /// Can be dropped.
    pub async fn assign_channels(
        &self,
        channels: Channels,
    ) -> RedisResult<HashMap<Address, Channels>> {
        self.nodes.assign_channels(channels).await
    }

    /// A connection to the master at this address, which is one of those that
    /// [`assign_channels`](Self::assign_channels) names. It also receives what the node sends by itself, and
    /// has the time limits of this `Redis`.
    ///
    /// # Errors
    /// [`Unusable::Refused`] when the server has no RESP3, or refuses the login's rights.
    ///
    /// # Cancellation
    /// Dropping the future closes the connection.
    pub async fn pushes(&self, address: &str) -> Result<PushConnection, Unusable> {
        let client = self.nodes.client(address)?;
        let info = client.get_connection_info().clone();
        let settings = info
            .redis_settings()
            .clone()
            .set_protocol(ProtocolVersion::RESP3);
        let client = Client::open(info.set_redis_settings(settings))?;
        let (sender, pushes) = unbounded_channel();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeouts.connect))
            .set_response_timeout(Some(self.timeouts.command))
            .set_push_sender(sender);
        let commands = client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        Ok(PushConnection { commands, pushes })
    }

    /// The node that serves this key, as far as that is known without asking; `None` for a single
    /// server.
    pub fn serving(&self, key: &str) -> Option<Address> {
        self.nodes.serving(key)
    }

    /// A future that ends when the masters have changed since this call, as far as that is known.
    pub fn changed(&self) -> impl Future<Output = ()> + Send + 'static {
        self.nodes.changed()
    }

    /// A future that ends when another node serves `key` than at the time of this call, as far as that
    /// is known; it never ends for a single server. Call it before [`client_of`](Self::client_of).
    pub fn moved(&self, key: &str) -> impl Future<Output = ()> + Send + 'static {
        let nodes = self.nodes.clone();
        let key = key.to_owned();
        let mut before = nodes.serving(&key);
        async move {
            loop {
                let changed = nodes.changed();
                let now = nodes.serving(&key);
                if before.is_some() && now.is_some() && now != before {
                    return;
                }
                before = now.or(before);
                changed.await;
            }
        }
    }

    /// Watches for a failover that causes no error: asks each sentinel once a second. Never ends. One
    /// call is enough for all clones. Without it, only errors show that there was a failover.
    ///
    /// # Cancellation
    /// Dropping the future ends the watch.
    pub async fn monitor(&self) {
        self.nodes.monitor().await;
    }

    /// Looks nodes up again before the next use. Call it when a connection of your own broke, or a
    /// command was not answered, as when a node is replaced.
    pub fn recheck(&self) {
        self.nodes.mark_stale();
    }

    /// Whether it is a cluster: then the keys of a script, a transaction, or a command have to be in
    /// one slot, and there are sharded channels besides the ordinary ones.
    pub fn is_cluster(&self) -> bool {
        self.nodes.is_cluster()
    }
}

/// The same nodes, for example for the locks.
impl From<Redis> for Server {
    fn from(redis: Redis) -> Self {
        Self {
            nodes: Vec::new(),
            topology: Topology::Shared(redis.nodes),
        }
    }
}
