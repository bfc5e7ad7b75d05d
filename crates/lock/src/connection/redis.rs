//! [`Redis`]: one Redis for the whole application, for its own commands as well as for the locks.

use std::time::Duration;

use redis::{Client, RedisResult};

use crate::config::LockConfig;
use crate::connection::backend::Backend;
use crate::connection::failure::Failure;
use crate::connection::routed::RoutedConnection;
use crate::connection::server::{Server, Topology};
use crate::error::Error;

/// A Redis for an application's own commands, whichever way it is run: one server, a cluster, or a
/// master that Sentinel monitors. Given to [`Locks::connect`](crate::Locks::connect) as a [`Server`],
/// the locks share what it knows: a cluster's slot table, the present master.
///
/// The nodes are watched for a failover that causes no error as long as a [`Locks`](crate::Locks) of
/// it exists; without one, errors alone tell. Cheap to clone.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use redis::AsyncCommands;
/// use redisson_lock::{LockConfig, Locks, Redis, Server};
///
/// let limit = Duration::from_secs(1);
/// let server = Server::from_url("redis-sentinel://10.0.0.1:26379,10.0.0.2:26379/mymaster")?;
/// let redis = Redis::new(server, limit, limit)?;
/// let visits: u64 = redis.commands().incr("visits", 1).await?;
/// let locks = Locks::connect(redis.clone(), LockConfig::default()).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Redis {
    backend: Backend,
    commands: RoutedConnection,
    connect_timeout: Duration,
}

impl Redis {
    /// Makes no connection yet: the first command does. `connect_timeout` is for opening a connection,
    /// TLS and login included, `command_timeout` for each command; at least 10 ms each.
    ///
    /// # Errors
    /// [`Error::Rejected`] when an address cannot be used.
    pub fn new(
        server: impl Into<Server>,
        connect_timeout: Duration,
        command_timeout: Duration,
    ) -> Result<Self, Error> {
        let config = LockConfig::default()
            .with_connect_timeout(connect_timeout)
            .with_command_timeout(command_timeout)
            .clamped();
        let backend = Backend::new(server.into(), &config)
            .map_err(|error| Failure::Rejected(error.into()).into_error("connect"))?;
        let commands = backend.link();
        Ok(Self { backend, commands, connect_timeout })
    }

    /// The same Redis with another time limit for commands. The connections to a cluster's nodes are
    /// shared, so that there only callers can be quicker.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_command_timeout(&self, command_timeout: Duration) -> Result<Self, Error> {
        Self::new(self.clone(), self.connect_timeout, command_timeout)
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
        self.backend.ping(self.commands.clone()).await
    }

    /// A client of the node that serves `key` now, for a connection of one's own: for messages, or
    /// reads that block. Any channel's name will do as the key. When such a connection breaks, or
    /// answers READONLY or MOVED, call [`recheck`](Self::recheck) and this again; when
    /// [`moved`](Self::moved) ends, this again.
    ///
    /// # Errors
    /// When no node serves the key, no sentinel knows a master, or there is no client beside a
    /// connection that the application supplied.
    ///
    /// # Cancellation
    /// Can be dropped.
    pub async fn client_of(&self, key: &str) -> RedisResult<Client> {
        self.backend.client_of(key).await
    }

    /// A client of every master: one, or those of a cluster.
    ///
    /// # Errors
    /// As [`client_of`](Self::client_of).
    ///
    /// # Cancellation
    /// Can be dropped.
    pub async fn masters(&self) -> RedisResult<Vec<Client>> {
        self.backend.masters().await
    }

    /// A future that ends when another node serves `key` than at the time of this call, as far as that
    /// is known; it never ends for a single server. Call it before [`client_of`](Self::client_of).
    pub fn moved(&self, key: &str) -> impl Future<Output = ()> + Send + 'static {
        let (backend, key) = (self.backend.clone(), key.to_owned());
        let mut before = backend.serving(&key);
        async move {
            loop {
                let changed = backend.changed();
                let now = backend.serving(&key);
                if before.is_some() && now.is_some() && now != before {
                    return;
                }
                before = now.or(before);
                changed.await;
            }
        }
    }

    /// A connection of one's own broke, as it does when a node is replaced: nodes are looked up again
    /// before the next use.
    pub fn recheck(&self) {
        self.backend.mark_stale();
    }

    /// Whether it is a cluster: then the keys of a script, a transaction, or a command have to be in
    /// one slot.
    pub fn is_cluster(&self) -> bool {
        self.backend.is_cluster()
    }
}

/// The same nodes, for the locks.
impl From<Redis> for Server {
    fn from(redis: Redis) -> Self {
        Self { nodes: Vec::new(), topology: Topology::Shared(redis.backend.nodes()) }
    }
}
