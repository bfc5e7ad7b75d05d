//! The Redis in use: its nodes with the time limits of one handle.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;

use redis::{Client, ErrorKind, RedisError, RedisResult};

use crate::config::LockConfig;
use crate::connection::address::Channels;
use crate::connection::cluster::Cluster;
use crate::connection::nodes::{Nodes, Single, Supplied};
use crate::connection::routed::RoutedConnection;
use crate::connection::sentinel::Master;
use crate::connection::server::{Server, Topology};
use crate::connection::settings::{self, Timeouts};

/// A [`Server`] with its connections.
#[derive(Debug, Clone)]
pub(crate) struct Backend {
    nodes: Arc<dyn Nodes>,
    timeouts: Timeouts,
    pubsub: bool,
}

impl Backend {
    /// Makes no connection yet.
    pub(crate) fn new(server: Server, config: &LockConfig) -> RedisResult<Self> {
        let (tcp, timeouts) = (settings::tcp(config), Timeouts::from(config));
        server.nodes.iter().try_for_each(settings::check_tls)?;
        let nodes: Vec<_> =
            server.nodes.into_iter().map(|node| node.set_tcp_settings(tcp.clone())).collect();
        let client = nodes.first().cloned().map(Client::open).transpose()?;
        let nodes: Arc<dyn Nodes> = match server.topology {
            Topology::Single => {
                Arc::new(Single(client.ok_or((ErrorKind::Client, "there is no address"))?))
            }
            Topology::Supplied(connection) => Arc::new(Supplied(connection, client)),
            Topology::Cluster => Arc::new(Cluster::new(nodes, timeouts)),
            Topology::Sentinel(master, login) => {
                Arc::new(Master::new(nodes, master, login, timeouts.connect)?)
            }
            Topology::Shared(nodes) => nodes,
        };
        Ok(Self { nodes, timeouts, pubsub: config.pubsub })
    }

    pub(crate) fn nodes(&self) -> Arc<dyn Nodes> {
        self.nodes.clone()
    }

    /// The connections for commands, opened by the first command.
    pub(crate) fn link(&self) -> RoutedConnection {
        self.nodes.clone().link(self.timeouts)
    }

    /// A client for the node that serves `key`.
    pub(crate) async fn client_of(&self, key: &str) -> RedisResult<Client> {
        let assigned = self.assign_channels(Channels::from([key.into()])).await?;
        let serving = assigned.iter().find(|(_, keys)| !keys.is_empty());
        let none = || (ErrorKind::ClusterConnectionNotFound, "no node serves this slot").into();
        let (address, _) = serving.ok_or_else::<RedisError, _>(none)?;
        self.client(address)
    }

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
