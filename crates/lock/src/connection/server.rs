//! Which Redis to use, as the user names it.

use std::sync::Arc;

use redis::aio::ConnectionLike;
use redis::{Client, ConnectionInfo, RedisConnectionInfo};

use crate::connection::link::Link;
use crate::connection::nodes::Nodes;
use crate::error::Error;

/// Which Redis to use: one server, a cluster, a master monitored by Sentinel, a connection that the
/// application has made, or the application's [`Redis`](crate::Redis).
/// [`from_url`](Self::from_url) reads an address that users set.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use redisson_lock::{LockConfig, Locks, Server};
///
/// let one = redis::Client::open("redis://127.0.0.1/")?;
/// let locks = Locks::connect(one, LockConfig::default()).await?;
///
/// let cluster = Server::cluster(["redis://10.0.0.1/", "redis://10.0.0.2/"])?;
/// let locks = Locks::connect(cluster, LockConfig::default()).await?;
///
/// let sentinels = ["redis://10.0.0.1:26379/", "redis://10.0.0.2:26379/"];
/// let login = redis::RedisConnectionInfo::default();
/// let locks = Locks::connect(Server::sentinel(sentinels, "mymaster", login)?, LockConfig::default());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Server(pub(crate) Topology);

#[derive(Debug, Clone)]
pub(crate) enum Topology {
    Single(Client),
    /// With what further connections are made with.
    Supplied(Link, Option<Client>),
    Cluster(Vec<ConnectionInfo>),
    Sentinel {
        sentinels: Vec<ConnectionInfo>,
        master: String,
        login: RedisConnectionInfo,
    },
    /// That of a `Redis`, which shares what it knows about its nodes.
    Shared(Arc<dyn Nodes>),
}

impl Server {
    /// A connection to one server that the application has made and may go on using, as for a pool or
    /// a proxy that it has to go through: a [`ConnectionManager`](redis::aio::ConnectionManager), a
    /// [`MultiplexedConnection`](redis::aio::MultiplexedConnection), or what wraps one. No other is
    /// made, so that waiters poll (see [`LockConfig::with_pubsub`](crate::LockConfig::with_pubsub)),
    /// losses are found by renewals, and no replica can acknowledge;
    /// [`with_client`](Self::with_client) mends all three.
    ///
    /// A connection of one's own is never replaced: it has to reconnect by itself, and should fail
    /// rather than send a command again that may have been executed. Each command ends at the
    /// earlier of its own time limit and ours. For a cluster use `Server::cluster`: the client of
    /// redis-rs sends commands again by itself, and releases would miss newer Redisson clients.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use redisson_lock::{LockConfig, Locks, Server};
    ///
    /// let client = redis::Client::open("redis://127.0.0.1/")?;
    /// let shared = client.get_connection_manager().await?;
    /// let server = Server::from_connection(shared.clone()).with_client(client);
    /// let locks = Locks::connect(server, LockConfig::default()).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_connection(
        connection: impl ConnectionLike + Clone + Send + Sync + 'static,
    ) -> Self {
        Self(Topology::Supplied(Link::supplied(connection), None))
    }

    /// Beside [`from_connection`](Self::from_connection): with what to make the connections that
    /// commands cannot share, for messages (Pub/Sub, client tracking) and for the acknowledgement of
    /// replicas (WAIT). Replaces the client of a single server; without effect on a cluster or
    /// Sentinel.
    #[must_use]
    pub fn with_client(self, client: Client) -> Self {
        Self(match self.0 {
            Topology::Single(_) => Topology::Single(client),
            Topology::Supplied(connection, _) => Topology::Supplied(connection, Some(client)),
            other => other,
        })
    }

    /// Log in with this user (`None`: that of the address) and password, in place of those in the addresses:
    /// to one server, to each node of a cluster, to the master behind sentinels. A connection that the
    /// application has made is not changed, only the client beside it.
    ///
    /// # Errors
    /// [`Error::Rejected`] for the nodes of a [`Redis`](crate::Redis), which were given their login
    /// before.
    pub fn with_login(self, user: Option<&str>, password: &str) -> Result<Self, Error> {
        let login = |settings: &RedisConnectionInfo| {
            let settings = settings.clone().set_password(password);
            match user {
                Some(user) => settings.set_username(user),
                None => settings,
            }
        };
        let node =
            |info: &ConnectionInfo| info.clone().set_redis_settings(login(info.redis_settings()));
        let open = |client: Client| {
            let opened = Client::open(node(client.get_connection_info()));
            opened.map_err(|error| unusable(&error.to_string()))
        };
        Ok(Self(match self.0 {
            Topology::Single(client) => Topology::Single(open(client)?),
            Topology::Supplied(connection, client) => {
                Topology::Supplied(connection, client.map(open).transpose()?)
            }
            Topology::Cluster(nodes) => Topology::Cluster(nodes.iter().map(node).collect()),
            Topology::Sentinel { sentinels, master, login: settings } => {
                Topology::Sentinel { sentinels, master, login: login(&settings) }
            }
            Topology::Shared(_) => return Err(unusable("its nodes have their login")),
        }))
    }

    /// A Redis Cluster, reached through any of `nodes`; the others are
    /// discovered. User, password and TLS settings of the first node are used for all.
    ///
    /// # Errors
    /// [`Error::Rejected`] when there is no node, or an address cannot be used: a Unix socket, or a
    /// database other than 0, which clusters do not have.
    pub fn cluster<N: redis::IntoConnectionInfo>(
        nodes: impl IntoIterator<Item = N>,
    ) -> Result<Self, Error> {
        let nodes = addresses(nodes, "a cluster needs at least one node")?;
        if nodes.iter().any(|node| node.redis_settings().db() != 0) {
            return Err(unusable("a cluster has database 0 only"));
        }
        Ok(Self(Topology::Cluster(nodes)))
    }

    /// The master that `sentinels` monitor under the name `master`.
    /// `login` is the master's user, password and database; the addresses of the sentinels carry
    /// their own. The master is assumed to use TLS if the first sentinel does.
    ///
    /// # Errors
    /// [`Error::Rejected`] when there is no sentinel, or an address cannot be used.
    pub fn sentinel<N: redis::IntoConnectionInfo>(
        sentinels: impl IntoIterator<Item = N>,
        master: impl Into<String>,
        login: RedisConnectionInfo,
    ) -> Result<Self, Error> {
        let sentinels = addresses(sentinels, "Sentinel needs at least one sentinel")?;
        Ok(Self(Topology::Sentinel { sentinels, master: master.into(), login }))
    }
}

/// A single server.
impl From<Client> for Server {
    fn from(client: Client) -> Self {
        Self(Topology::Single(client))
    }
}

fn addresses<N: redis::IntoConnectionInfo>(
    nodes: impl IntoIterator<Item = N>,
    if_none: &'static str,
) -> Result<Vec<ConnectionInfo>, Error> {
    let nodes: redis::RedisResult<Vec<_>> =
        nodes.into_iter().map(redis::IntoConnectionInfo::into_connection_info).collect();
    let nodes = nodes.map_err(|error| unusable(&error.to_string()))?;
    if nodes.is_empty() {
        return Err(unusable(if_none));
    }
    if nodes.iter().any(|node| matches!(node.addr(), redis::ConnectionAddr::Unix(_))) {
        return Err(unusable("nodes need a host and a port, not a Unix socket"));
    }
    Ok(nodes)
}

pub(crate) fn unusable(reason: &str) -> Error {
    Error::Rejected { operation: "connect", cause: reason.to_owned().into() }
}
