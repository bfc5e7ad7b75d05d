//! Redis: one server, a cluster, or a master that Sentinel monitors; which one, only the address says. Every command has
//! a time limit, so that a Redis that hangs delays a request by no more than that.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use redis_link::Server;
use secrecy::{ExposeSecret, SecretString};

pub use redis_link::{Redis, RoutedConnection};

/// The Redis that this address names. For TLS it takes files in PEM format: the `authority` that has signed the certificates of
/// the servers (the system's where there is none), and `client_cert`, the client's certificate and its key.
///
/// # Errors
/// One sentence that names the setting, never the address, which may hold a password: it cannot be used, or a file cannot.
pub fn server(
    url: &SecretString,
    authority: Option<&Path>,
    client_cert: Option<(&Path, &Path)>,
) -> anyhow::Result<Server> {
    let server = Server::from_url(url.expose_secret()).map_err(not_usable)?;
    if authority.is_none() && client_cert.is_none() {
        return Ok(server);
    }
    anyhow::ensure!(
        url.expose_secret().trim().starts_with("rediss"),
        "REDIS_CA, REDIS_CERT (--redis-ca, --redis-cert) are for TLS: the address in REDIS_URL has to begin with rediss"
    );
    let read = |setting: &str, file: &Path| {
        std::fs::read(file).with_context(|| format!("{setting}: cannot read {}", file.display()))
    };
    let root_cert = authority
        .map(|file| read("REDIS_CA (--redis-ca)", file))
        .transpose()?;
    let client_cert = client_cert.map(|(certificate, key)| {
        anyhow::Ok(redis::ClientTlsConfig {
            client_cert: read("REDIS_CERT (--redis-cert)", certificate)?,
            client_key: read("REDIS_KEY (--redis-key)", key)?,
        })
    });
    let certificates = redis::TlsCertificates {
        client_tls: client_cert.transpose()?,
        root_cert,
    };
    server
        .with_certificates(&certificates)
        .map_err(|error| anyhow::anyhow!("REDIS_CA, REDIS_CERT, REDIS_KEY: not usable: {error}"))
}

fn not_usable(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow::anyhow!("REDIS_URL (--redis-url): {error}")
}

/// Connects; `timeout` limits connecting and every command.
///
/// # Errors
/// One sentence that names the setting. What the server can do, and the user may, is checked in [`crate::keys::rights`].
pub async fn connect(server: Server, timeout: Duration) -> anyhow::Result<Redis> {
    let redis = Redis::new(server, timeout, timeout).map_err(not_usable)?;
    redis.ping().await.map_err(|error| {
        anyhow::anyhow!(
            "REDIS_URL (--redis-url): cannot connect to Redis ({error}): is it running, and are the address, which \
             begins with rediss where the port expects TLS, user, password, and REDIS_CA, REDIS_CERT and REDIS_KEY right?"
        )
    })?;
    Ok(redis)
}

/// A field of INFO.
pub fn info_field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
}
