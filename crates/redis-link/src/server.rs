//! Which Redis to use, as the user names it.

use std::borrow::Cow;
use std::sync::Arc;

use redis::{Client, ConnectionInfo, RedisConnectionInfo, RedisError};

use crate::nodes::Nodes;

/// Which Redis to use: one server, a cluster, a master monitored by Sentinel, or the nodes of the
/// application's [`Redis`](crate::Redis). [`from_url`](Self::from_url) reads an address that users set.
#[derive(Debug, Clone)]
pub struct Server {
    /// The server, nodes of the cluster, or the sentinels, each with its login and TLS.
    pub(crate) nodes: Vec<ConnectionInfo>,
    pub(crate) topology: Topology,
}

#[derive(Debug, Clone)]
pub(crate) enum Topology {
    Single,
    Cluster,
    /// The name of the master, and its login.
    Sentinel(String, RedisConnectionInfo),
    /// The nodes of another `Redis`, which shares what it knows about them.
    Shared(Arc<dyn Nodes>),
}

impl Server {
    /// Log in with this user (`None`: that of the address) and password, in place of those in the addresses:
    /// to one server, to each node of a cluster, to the master behind sentinels.
    ///
    /// # Errors
    /// For the nodes of a [`Redis`](crate::Redis), which were given their login before.
    pub fn with_login(mut self, user: Option<&str>, password: &str) -> Result<Self, AddressError> {
        let login = |settings: &RedisConnectionInfo| {
            let settings = settings.clone().set_password(password);
            match user {
                Some(user) => settings.set_username(user),
                None => settings,
            }
        };
        match &mut self.topology {
            Topology::Sentinel(_, master_login) => *master_login = login(master_login),
            Topology::Shared(_) => return Err(AddressError::new("its nodes have their login")),
            _ => {
                for node in &mut self.nodes {
                    *node = node
                        .clone()
                        .set_redis_settings(login(node.redis_settings()));
                }
            }
        }
        Ok(self)
    }

    /// Use these certificates for TLS, on every connection; with one of the `tls-` features. They are
    /// the client's own, which a server may ask for, and that of the authority that has signed the
    /// servers' certificates, in place of the system's authorities. Every address has to begin with
    /// `rediss://`.
    ///
    /// # Errors
    /// When a certificate or key is not in PEM format, or an address is without TLS;
    /// for the nodes of a [`Redis`](crate::Redis), which were given theirs before.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use redis::{ClientTlsConfig, TlsCertificates};
    /// use redis_link::Server;
    ///
    /// let client_tls = ClientTlsConfig {
    ///     client_cert: std::fs::read("client.crt")?,
    ///     client_key: std::fs::read("client.key")?,
    /// };
    /// let root_cert = Some(std::fs::read("authority.crt")?);
    /// let certificates = TlsCertificates { client_tls: Some(client_tls), root_cert };
    /// let server = Server::from(redis::Client::open("rediss://app:secret@redis.internal/")?)
    ///     .with_certificates(&certificates)?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]
    pub fn with_certificates(
        mut self,
        certificates: &redis::TlsCertificates,
    ) -> Result<Self, AddressError> {
        if let Topology::Shared(_) = self.topology {
            return Err(AddressError::new("its nodes have their certificates"));
        }
        for node in &mut self.nodes {
            let client = Client::build_with_tls(node.clone(), certificates.clone())?;
            *node = client.get_connection_info().clone();
        }
        Ok(self)
    }

    /// A Redis Cluster, reached through any of `nodes`; the others are
    /// discovered. User, password and TLS settings of the first node are used for all.
    ///
    /// # Errors
    /// When there is no node, or an address cannot be used: a Unix socket, or a
    /// database other than 0, which clusters do not have.
    pub fn cluster<N: redis::IntoConnectionInfo>(
        nodes: impl IntoIterator<Item = N>,
    ) -> Result<Self, AddressError> {
        let nodes = addresses(nodes, "a cluster needs at least one node")?;
        if nodes.iter().any(|node| node.redis_settings().db() != 0) {
            return Err(AddressError::new("a cluster has database 0 only"));
        }
        Ok(Self {
            nodes,
            topology: Topology::Cluster,
        })
    }

    /// The master that `sentinels` monitor under the name `master`.
    /// `login` is the master's user, password and database; the addresses of the sentinels carry
    /// their own. The master is assumed to use TLS if the first sentinel does.
    ///
    /// # Errors
    /// When there is no sentinel, or an address cannot be used.
    pub fn sentinel<N: redis::IntoConnectionInfo>(
        sentinels: impl IntoIterator<Item = N>,
        master: impl Into<String>,
        login: RedisConnectionInfo,
    ) -> Result<Self, AddressError> {
        let nodes = addresses(sentinels, "Sentinel needs at least one sentinel")?;
        Ok(Self {
            nodes,
            topology: Topology::Sentinel(master.into(), login),
        })
    }
}

/// A single server.
impl From<Client> for Server {
    fn from(client: Client) -> Self {
        Self {
            nodes: vec![client.get_connection_info().clone()],
            topology: Topology::Single,
        }
    }
}

fn addresses<N: redis::IntoConnectionInfo>(
    nodes: impl IntoIterator<Item = N>,
    if_none: &'static str,
) -> Result<Vec<ConnectionInfo>, AddressError> {
    let nodes = nodes
        .into_iter()
        .map(redis::IntoConnectionInfo::into_connection_info);
    let nodes: Vec<_> = nodes.collect::<redis::RedisResult<_>>()?;
    if nodes.is_empty() {
        return Err(AddressError::new(if_none));
    }
    if nodes
        .iter()
        .any(|node| matches!(node.addr(), redis::ConnectionAddr::Unix(_)))
    {
        return Err(AddressError::new(
            "nodes need a host and a port, not a Unix socket",
        ));
    }
    Ok(nodes)
}

/// An address, a login or a certificate that cannot be used. The text never contains the address, which
/// may hold a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AddressError(Cow<'static, str>);

impl AddressError {
    pub(crate) fn new(reason: &'static str) -> Self {
        Self(reason.into())
    }
}

impl From<RedisError> for AddressError {
    fn from(error: RedisError) -> Self {
        Self(error.to_string().into())
    }
}
