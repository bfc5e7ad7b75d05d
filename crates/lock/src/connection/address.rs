//! Node addresses, and the set of Pub/Sub channels that one node is subscribed for.

use std::collections::HashSet;
use std::sync::Arc;

use redis::{ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, RedisResult};

/// A node, `host:port`.
pub(crate) type Address = Arc<str>;

/// The channels to subscribe to on one node.
pub(crate) type Channels = HashSet<Arc<str>>;

/// The settings of `model` (login, TLS, TCP) at another address.
pub(crate) fn at_address(model: &ConnectionInfo, address: &str) -> RedisResult<ConnectionInfo> {
    let unusable = || RedisError::from((ErrorKind::Client, "not a node address"));
    let (host, port) = address.rsplit_once(':').ok_or_else(unusable)?;
    let (host, port) = (host.to_owned(), port.parse().map_err(|_| unusable())?);
    let addr = match model.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
            host,
            port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        _ => ConnectionAddr::Tcp(host, port),
    };
    Ok(model.clone().set_addr(addr))
}
