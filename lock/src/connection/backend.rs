//! The Redis in use: its connections for commands, and the nodes to subscribe on.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use redis::aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig};
use redis::{Client, ErrorKind, RedisError, RedisResult};

use crate::config::LockConfig;
use crate::connection::address::{Address, Channels};
use crate::connection::cluster::Cluster;
use crate::connection::cluster_link::ClusterLink;
use crate::connection::link::Link;
use crate::connection::master_link::MasterLink;
use crate::connection::nodes::Nodes;
use crate::connection::sentinel::Master;
use crate::connection::server::{Server, Topology};
use crate::connection::settings;
use crate::connection::shared::SharedConnection;
use crate::connection::slots::slot;

/// A [`Server`] with its connections: which node takes a command, and which one to subscribe on.
#[derive(Clone)]
pub(crate) struct Backend {
    nodes: Nodes,
    settings: ConnectionManagerConfig,
    pubsub: bool,
    timeout: Duration,
}

impl Backend {
    /// Makes no connection yet.
    ///
    /// # Errors
    /// When an address cannot be used.
    pub(crate) fn new(server: Server, config: &LockConfig) -> RedisResult<Self> {
        let (tcp, manager) = (settings::tcp(config), settings::manager(config));
        let with_settings = |client: Client| {
            settings::check_tls(client.get_connection_info())?;
            Client::open(client.get_connection_info().clone().set_tcp_settings(tcp.clone()))
        };
        let nodes = match server.0 {
            Topology::Single(client) => Nodes::Single(with_settings(client)?),
            Topology::Supplied(connection, client) => {
                Nodes::Supplied(connection, client.map(with_settings).transpose()?)
            }
            Topology::Cluster(nodes) => {
                nodes.iter().try_for_each(settings::check_tls)?;
                let nodes = nodes.into_iter().map(|node| node.set_tcp_settings(tcp.clone()));
                Nodes::Cluster(Arc::new(Cluster::new(nodes.collect(), manager.clone())))
            }
            Topology::Sentinel { sentinels, master, login } => {
                sentinels.iter().try_for_each(settings::check_tls)?;
                let timeout = config.connect_timeout;
                Nodes::Sentinel(Arc::new(Master::new(sentinels, master, login, tcp, timeout)?))
            }
            Topology::Shared(nodes) => nodes,
        };
        Ok(Self {
            nodes,
            settings: manager,
            pubsub: config.pubsub,
            timeout: config.command_timeout,
        })
    }

    /// The connections for commands, opened by the first command.
    ///
    /// # Errors
    /// When the settings contradict each other.
    pub(crate) fn link(&self) -> RedisResult<Link> {
        Ok(match &self.nodes {
            Nodes::Single(client) => {
                let settings = self.settings.clone();
                let manager =
                    ConnectionManager::new_lazy_with_config(client.clone(), settings.clone())?;
                Link::Single(SharedConnection::new(manager, client.clone(), settings))
            }
            Nodes::Supplied(connection, _) => Link::Supplied(connection.clone()),
            Nodes::Cluster(cluster) => Link::Cluster(ClusterLink::new(cluster.clone())),
            Nodes::Sentinel(master) => {
                Link::Sentinel(MasterLink::new(master.clone(), self.timeout))
            }
        })
    }

    /// A further connection to the master that Sentinel monitors; `None` for other kinds of server.
    pub(crate) fn master_link(&self, timeout: Duration) -> Option<Link> {
        match &self.nodes {
            Nodes::Sentinel(master) => {
                Some(Link::Sentinel(MasterLink::new(master.clone(), timeout)))
            }
            _ => None,
        }
    }

    /// The nodes, for another backend that shares them.
    pub(crate) fn nodes(&self) -> Nodes {
        self.nodes.clone()
    }

    /// Succeeds when the server answers on `link`, or any master of a cluster.
    pub(crate) async fn ping(&self, mut link: impl ConnectionLike) -> RedisResult<()> {
        match &self.nodes {
            Nodes::Cluster(cluster) => cluster.ping().await,
            _ => redis::cmd("PING").exec_async(&mut link).await,
        }
    }

    /// A client for the node that serves `key`.
    ///
    /// # Errors
    /// When no node serves it, or no sentinel knows a master.
    pub(crate) async fn client_of(&self, key: &str) -> RedisResult<Client> {
        let address = match &self.nodes {
            Nodes::Cluster(cluster) => cluster.master(Some(slot(key.as_bytes()))).await?,
            Nodes::Sentinel(master) => master.address().await?,
            Nodes::Single(_) | Nodes::Supplied(..) => Address::from(""),
        };
        self.client(&address)
    }

    /// A client for every master.
    ///
    /// # Errors
    /// As [`client_of`](Self::client_of).
    pub(crate) async fn masters(&self) -> RedisResult<Vec<Client>> {
        let assigned = self.assign_channels(Channels::new()).await?;
        assigned.keys().map(|address| self.client(address)).collect()
    }

    /// The node that serves this key, as far as that is known without asking.
    pub(crate) fn serving(&self, key: &str) -> Option<Address> {
        match &self.nodes {
            Nodes::Sentinel(master) => master.known_address(),
            _ => self.master_of(key),
        }
    }

    /// The node of a cluster that serves this key, as far as that is known without asking; `None` for
    /// other kinds of server.
    pub(crate) fn master_of(&self, key: &str) -> Option<Address> {
        match &self.nodes {
            Nodes::Cluster(cluster) => cluster.master_of(key),
            _ => None,
        }
    }

    /// Whether waiters are woken by messages, for which a connection of their own is needed.
    pub(crate) fn has_pubsub(&self) -> bool {
        self.pubsub && self.makes_connections()
    }

    /// Whether further connections can be made.
    pub(crate) fn makes_connections(&self) -> bool {
        !matches!(self.nodes, Nodes::Supplied(_, None))
    }

    /// Whether this is a cluster, which has sharded channels besides the ordinary ones.
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.nodes, Nodes::Cluster(_))
    }

    /// The Redis commands that publish a release. On a cluster both kinds: Redisson subscribes to
    /// sharded channels from 3.22 on, and to ordinary ones before.
    pub(crate) fn publish_commands(&self) -> &'static [&'static str] {
        if self.is_cluster() { &["PUBLISH", "SPUBLISH"] } else { &["PUBLISH"] }
    }

    /// Assign `channels` to the nodes to subscribe on; a single server has the address "". Channels
    /// that no node serves at the moment are left out.
    ///
    /// # Errors
    /// When no node of a cluster answers, or no sentinel knows a master.
    pub(crate) async fn assign_channels(
        &self,
        channels: Channels,
    ) -> RedisResult<HashMap<Address, Channels>> {
        match &self.nodes {
            Nodes::Cluster(cluster) => cluster.assign_channels(channels).await,
            Nodes::Sentinel(master) => Ok(HashMap::from([(master.address().await?, channels)])),
            Nodes::Single(_) | Nodes::Supplied(..) => {
                Ok(HashMap::from([(Address::from(""), channels)]))
            }
        }
    }

    /// A client for one of the nodes of [`assign_channels`](Self::assign_channels).
    pub(crate) fn client(&self, address: &str) -> RedisResult<Client> {
        match &self.nodes {
            Nodes::Single(client) | Nodes::Supplied(_, Some(client)) => Ok(client.clone()),
            Nodes::Supplied(_, None) => Err(no_client()),
            Nodes::Cluster(cluster) => cluster.client(address),
            Nodes::Sentinel(master) => master.client(address),
        }
    }

    /// A connection broke, as it does when a node is replaced: look nodes up again before next use.
    pub(crate) fn mark_stale(&self) {
        match &self.nodes {
            Nodes::Single(_) | Nodes::Supplied(..) => {}
            Nodes::Cluster(cluster) => cluster.mark_stale(),
            Nodes::Sentinel(master) => master.mark_stale(),
        }
    }

    /// A future that ends when the nodes to subscribe on have changed since this call, as far as
    /// that is known.
    pub(crate) fn changed(&self) -> BoxFuture<'static, ()> {
        match &self.nodes {
            Nodes::Single(_) | Nodes::Supplied(..) => Box::pin(std::future::pending()),
            Nodes::Cluster(cluster) => Box::pin(cluster.changed()),
            Nodes::Sentinel(master) => Box::pin(master.changed()),
        }
    }

    /// Watch for a failover that causes no error. Never ends.
    pub(crate) async fn monitor(&self) {
        match &self.nodes {
            Nodes::Sentinel(master) => master.monitor().await,
            _ => std::future::pending().await,
        }
    }
}

fn no_client() -> RedisError {
    (ErrorKind::InvalidClientConfig, "there is no client beside the supplied connection").into()
}
