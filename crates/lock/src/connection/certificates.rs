//! Certificates for TLS: the client's own, and the authority of the servers.

use redis::ConnectionInfo;
use redis::{Client, IntoConnectionInfo, RedisResult, TlsCertificates};

use crate::connection::server::{Server, Topology, unusable};
use crate::error::Error;

impl Server {
    /// Use these certificates for TLS, on every connection; with one of the `tls-` features. They are
    /// the client's own, which a server may ask for, and the authority that has signed those of the
    /// servers, in place of the system's. Every address has to begin with `rediss://`. A connection
    /// that the application has made is not changed, only the client beside it.
    ///
    /// # Errors
    /// [`Error::Rejected`] when a certificate or key is not in PEM format, or an address is without TLS.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use redis::{ClientTlsConfig, TlsCertificates};
    /// use redisson_lock::Server;
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
    pub fn with_certificates(self, certificates: &TlsCertificates) -> Result<Self, Error> {
        let topology = match self.0 {
            Topology::Single(client) => {
                with(client.get_connection_info().clone(), certificates).map(Topology::Single)
            }
            Topology::Supplied(connection, client) => client
                .map(|client| with(client.get_connection_info().clone(), certificates))
                .transpose()
                .map(|client| Topology::Supplied(connection, client)),
            Topology::Cluster(nodes) => all_with(nodes, certificates).map(Topology::Cluster),
            Topology::Sentinel { sentinels, master, login } => all_with(sentinels, certificates)
                .map(|sentinels| Topology::Sentinel { sentinels, master, login }),
            Topology::Shared(_) => Err((
                redis::ErrorKind::InvalidClientConfig,
                "the certificates belong to the server that this Redis was made of",
            )
                .into()),
        };
        topology.map(Self).map_err(|error| unusable(&error.to_string()))
    }
}

fn with(address: impl IntoConnectionInfo, certificates: &TlsCertificates) -> RedisResult<Client> {
    Client::build_with_tls(address, certificates.clone())
}

fn all_with(
    addresses: Vec<ConnectionInfo>,
    certificates: &TlsCertificates,
) -> RedisResult<Vec<ConnectionInfo>> {
    let with = |address| Ok(with(address, certificates)?.get_connection_info().clone());
    addresses.into_iter().map(with).collect()
}
