//! The Redis in use: its nodes with the time limits of one handle.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;

use redis::{Client, RedisResult};

use crate::config::LockConfig;
use crate::connection::address::Channels;
use crate::connection::cluster::Cluster;
use crate::connection::link::Link;
use crate::connection::nodes::{Nodes, Single, Supplied};
use crate::connection::sentinel::Master;
use crate::connection::server::{Server, Topology};
use crate::connection::settings::{self, Timeouts};

/// A [`Server`] with its connections.
#[derive(Clone)]
pub(crate) struct Backend {
    nodes: Arc<dyn Nodes>,
    timeouts: Timeouts,
    pubsub: bool,
}

impl Backend {
    /// Makes no connection yet.
    ///
    /// # Errors
    /// When an address cannot be used.
    pub(crate) fn new(server: Server, config: &LockConfig) -> RedisResult<Self> {
        let (tcp, timeouts) = (settings::tcp(config), Timeouts::from(config));
        let with_settings = |client: Client| {
            settings::check_tls(client.get_connection_info())?;
            Client::open(client.get_connection_info().clone().set_tcp_settings(tcp.clone()))
        };
        let nodes: Arc<dyn Nodes> = match server.0 {
            Topology::Single(client) => Arc::new(Single(with_settings(client)?)),
            Topology::Supplied(link, client) => {
                Arc::new(Supplied(link, client.map(with_settings).transpose()?))
            }
            Topology::Cluster(nodes) => {
                nodes.iter().try_for_each(settings::check_tls)?;
                let nodes = nodes.into_iter().map(|node| node.set_tcp_settings(tcp.clone()));
                Arc::new(Cluster::new(nodes.collect(), timeouts))
            }
            Topology::Sentinel { sentinels, master, login } => {
                sentinels.iter().try_for_each(settings::check_tls)?;
                Arc::new(Master::new(sentinels, master, login, tcp, timeouts.connect)?)
            }
            Topology::Shared(nodes) => nodes,
        };
        Ok(Self { nodes, timeouts, pubsub: config.pubsub })
    }

    /// The nodes, for another backend that shares them.
    pub(crate) fn nodes(&self) -> Arc<dyn Nodes> {
        self.nodes.clone()
    }

    /// The connections for commands, opened by the first command.
    pub(crate) fn link(&self) -> Link {
        self.nodes.clone().link(self.timeouts)
    }

    /// A client for the node that serves `key`.
    ///
    /// # Errors
    /// As [`Nodes::node_of`] and [`Nodes::client`].
    pub(crate) async fn client_of(&self, key: &str) -> RedisResult<Client> {
        self.client(&self.node_of(key).await?)
    }

    /// A client for every master.
    ///
    /// # Errors
    /// As [`client_of`](Self::client_of).
    pub(crate) async fn masters(&self) -> RedisResult<Vec<Client>> {
        let assigned: HashMap<_, _> = self.assign_channels(Channels::new()).await?;
        assigned.keys().map(|address| self.client(address)).collect()
    }

    /// Whether waiters are woken by messages, for which a connection of their own is needed.
    pub(crate) fn has_pubsub(&self) -> bool {
        self.pubsub && self.makes_connections()
    }

    /// The Redis commands that publish a release. On a cluster both kinds: Redisson subscribes to
    /// sharded channels from 3.22 on, and to ordinary ones before.
    pub(crate) fn publish_commands(&self) -> &'static [&'static str] {
        if self.is_cluster() { &["PUBLISH", "SPUBLISH"] } else { &["PUBLISH"] }
    }
}

impl Deref for Backend {
    type Target = dyn Nodes;

    fn deref(&self) -> &Self::Target {
        &*self.nodes
    }
}
