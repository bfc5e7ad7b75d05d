//! Node addresses, and sets of channels or keys that one node serves.

use std::collections::HashSet;
use std::sync::Arc;

use redis::{ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, RedisResult};

/// A node, `host:port`; empty for a single server.
pub type Address = Arc<str>;

/// Channels to subscribe to, or keys.
pub type Channels = HashSet<Arc<str>>;

/// The settings of `model` (login, TLS, TCP) at another address.
pub(crate) fn at_address(model: &ConnectionInfo, address: &str) -> RedisResult<ConnectionInfo> {
    let unusable = || RedisError::from((ErrorKind::Client, "not a node address"));
    let (host, port) = address.rsplit_once(':').ok_or_else(unusable)?;
    let host = host.to_owned();
    let port = port.parse().map_err(|_| unusable())?;
    let addr = match model.addr() {
        ConnectionAddr::TcpTls {
            insecure,
            tls_params,
            ..
        } => ConnectionAddr::TcpTls {
            host,
            port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        _ => ConnectionAddr::Tcp(host, port),
    };
    Ok(model.clone().set_addr(addr))
}
