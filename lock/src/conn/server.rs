//! The three kinds of Redis that locks can live on, as the user names them and as they are used:
//! which node takes a command, and which one to listen to.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::io::tcp::TcpSettings;
use redis::{Client, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo, RedisResult};

use super::super::{Error, LockConfig};
use super::cluster::Cluster;
use super::link::Link;
use super::sentinel::Master;
use super::slots::Address;
use super::{Failure, PIPELINE_BUFFER};

/// The Redis that locks live on: one server, a cluster, or a master that Sentinel keeps.
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
pub struct Server(Kind);

#[derive(Debug, Clone)]
enum Kind {
    Single(Client),
    Cluster(Vec<ConnectionInfo>),
    Sentinel { sentinels: Vec<ConnectionInfo>, master: String, login: RedisConnectionInfo },
}

/// A [`Server`] in use.
#[derive(Clone)]
pub(in super::super) struct Backend {
    place: Place,
    settings: ConnectionManagerConfig,
    timeout: Duration,
}

#[derive(Clone)]
enum Place {
    Single(Client),
    Cluster(Arc<Cluster>),
    Sentinel(Arc<Master>),
}

/// What a place has to be listened to for.
pub(in super::super) type Channels = HashSet<Arc<str>>;

impl Server {
    /// A Redis Cluster, reached through any of `nodes`; the others are learned. User, password and
    /// TLS of the first hold for all.
    ///
    /// # Errors
    /// [`Error::Rejected`] when there is no node, or an address cannot be used: a socket file, or a
    /// database other than 0, which clusters do not have.
    pub fn cluster<N: IntoConnectionInfo>(
        nodes: impl IntoIterator<Item = N>,
    ) -> Result<Self, Error> {
        let nodes = addresses(nodes, "a cluster needs at least one node")?;
        if nodes.iter().any(|node| node.redis_settings().db() != 0) {
            return Err(unusable("a cluster has database 0 only"));
        }
        Ok(Self(Kind::Cluster(nodes)))
    }

    /// The master called `master`, wherever `sentinels` say it is. `login` is its user, password
    /// and database; the addresses of the sentinels carry their own.
    ///
    /// # Errors
    /// [`Error::Rejected`] when there is no sentinel, or an address cannot be used.
    pub fn sentinel<N: IntoConnectionInfo>(
        sentinels: impl IntoIterator<Item = N>,
        master: impl Into<String>,
        login: RedisConnectionInfo,
    ) -> Result<Self, Error> {
        let sentinels = addresses(sentinels, "Sentinel needs at least one sentinel")?;
        Ok(Self(Kind::Sentinel { sentinels, master: master.into(), login }))
    }
}

/// A single server.
impl From<Client> for Server {
    fn from(client: Client) -> Self {
        Self(Kind::Single(client))
    }
}

impl Backend {
    /// Makes no connection yet.
    ///
    /// # Errors
    /// When the address cannot be used.
    pub(in super::super) fn new(server: Server, config: &LockConfig) -> RedisResult<Self> {
        let (tcp, settings, timeout) = (tcp(config), settings(config), config.command_timeout);
        let place = match server.0 {
            Kind::Single(client) => {
                let info = client.get_connection_info().clone();
                Place::Single(Client::open(info.set_tcp_settings(tcp))?)
            }
            Kind::Cluster(nodes) => {
                let nodes = nodes.into_iter().map(|node| node.set_tcp_settings(tcp.clone()));
                Place::Cluster(Arc::new(Cluster::new(nodes.collect(), settings.clone())))
            }
            Kind::Sentinel { sentinels, master, login } => {
                let limit = config.connect_timeout;
                Place::Sentinel(Arc::new(Master::new(sentinels, master, login, tcp, limit)?))
            }
        };
        Ok(Self { place, settings, timeout })
    }

    /// The connections for commands, opened by the first command.
    ///
    /// # Errors
    /// When the settings contradict each other.
    pub(super) fn link(&self) -> RedisResult<Link> {
        Ok(match &self.place {
            Place::Single(client) => {
                let settings = self.settings.clone();
                Link::Single(ConnectionManager::new_lazy_with_config(client.clone(), settings)?)
            }
            Place::Cluster(cluster) => Link::Cluster(cluster.link()),
            Place::Sentinel(master) => Link::Sentinel(master.link(self.timeout)),
        })
    }

    /// Whether channels belong to slots, so that there are two kinds of them.
    pub(in super::super) fn has_slots(&self) -> bool {
        matches!(self.place, Place::Cluster(_))
    }

    /// The commands by which a release is announced. On a cluster both kinds: Redisson listens to
    /// sharded channels from 3.22 on, and to ordinary ones before.
    pub(super) fn publishing(&self) -> &'static [&'static str] {
        if self.has_slots() { &["PUBLISH", "SPUBLISH"] } else { &["PUBLISH"] }
    }

    /// Share `channels` out among the nodes to listen to; a single place is called "". Channels
    /// that nobody can be listened to for at the moment are left out.
    ///
    /// # Errors
    /// When no node of a cluster answers, or no sentinel knows a master.
    pub(in super::super) async fn share_out(
        &self,
        channels: Channels,
    ) -> RedisResult<HashMap<Address, Channels>> {
        match &self.place {
            Place::Cluster(cluster) => cluster.share_out(channels).await,
            Place::Sentinel(master) => Ok(HashMap::from([(master.present().await?, channels)])),
            Place::Single(_) => Ok(HashMap::from([(Address::from(""), channels)])),
        }
    }

    /// A client for one of the nodes to listen to.
    pub(in super::super) fn client(&self, place: &str) -> RedisResult<Client> {
        match &self.place {
            Place::Single(client) => Ok(client.clone()),
            Place::Cluster(cluster) => cluster.client(place),
            Place::Sentinel(master) => master.client(place),
        }
    }

    /// Something went wrong that a change of roles would explain.
    pub(in super::super) fn doubt(&self) {
        match &self.place {
            Place::Single(_) => {}
            Place::Cluster(cluster) => cluster.doubt(),
            Place::Sentinel(master) => master.doubt(),
        }
    }

    /// A future that ends when there is another place to listen to since `changes` was called, as
    /// far as it is known.
    pub(in super::super) fn changes(&self) -> BoxFuture<'static, ()> {
        match &self.place {
            Place::Single(_) => Box::pin(std::future::pending()),
            Place::Cluster(cluster) => Box::pin(cluster.changes()),
            Place::Sentinel(master) => Box::pin(master.changes()),
        }
    }

    /// Look after what may change without an error. Never ends.
    pub(in super::super) async fn patrol(&self) {
        match &self.place {
            Place::Sentinel(master) => master.patrol().await,
            Place::Single(_) | Place::Cluster(_) => std::future::pending().await,
        }
    }
}

/// What a lock needs of its sockets: no Nagle delay, and a connection whose peer vanished is given
/// up after several commands' worth of silence (where the system can do that).
fn tcp(config: &LockConfig) -> TcpSettings {
    let settings = TcpSettings::default().set_nodelay(true);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(config.command_timeout * 5);
    #[cfg(not(target_os = "linux"))]
    let _ = config;
    settings
}

fn settings(config: &LockConfig) -> ConnectionManagerConfig {
    ConnectionManagerConfig::new()
        .set_response_timeout(Some(config.command_timeout))
        .set_connection_timeout(Some(config.connect_timeout))
        // Each command tries to connect once and then fails: callers learn at once that Redis is
        // away, and the next command is the next try.
        .set_number_of_retries(0)
        .set_pipeline_buffer_size(PIPELINE_BUFFER)
}

fn addresses<N: IntoConnectionInfo>(
    nodes: impl IntoIterator<Item = N>,
    none: &'static str,
) -> Result<Vec<ConnectionInfo>, Error> {
    let nodes: RedisResult<Vec<_>> =
        nodes.into_iter().map(IntoConnectionInfo::into_connection_info).collect();
    let nodes = nodes.map_err(|error| unusable(&error.to_string()))?;
    if nodes.is_empty() {
        return Err(unusable(none));
    }
    if nodes.iter().any(|node| matches!(node.addr(), redis::ConnectionAddr::Unix(_))) {
        return Err(unusable("nodes are named by host and port, not by a socket file"));
    }
    Ok(nodes)
}

fn unusable(why: &str) -> Error {
    Failure::Rejected(why.to_owned()).outcome("connect")
}
