//! Redis: one server, a cluster, or a master that Sentinel monitors; which one, only the address says. Every command has
//! a time limit, so that a Redis that hangs delays a request by no more than that.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use redis_link::Server;
use secrecy::{ExposeSecret, SecretString};

use super::redis_errors::sentence;
use super::redis_requirements;

pub use redis_link::{Redis, RoutedConnection};

/// The Redis that this address names.
///
/// # Errors
/// One sentence that names the setting, never the address, which may hold a password.
pub fn server(url: &SecretString) -> anyhow::Result<Server> {
    Server::from_url(url.expose_secret())
        .map_err(|error| anyhow::anyhow!("REDIS_URL (--redis-url): {error}"))
}

/// As [`server`], with TLS by files in PEM format: the `authority` that has signed the certificates of the servers (the
/// system's where there is none), and the client's `own` certificate with its key.
///
/// # Errors
/// Also for a file that cannot be read or used, and an address without TLS.
pub fn server_with(
    url: &SecretString,
    authority: Option<&Path>,
    own: Option<(&Path, &Path)>,
) -> anyhow::Result<Server> {
    let server = server(url)?;
    if authority.is_none() && own.is_none() {
        return Ok(server);
    }
    anyhow::ensure!(
        url.expose_secret().trim().starts_with("rediss"),
        "REDIS_CA, REDIS_CERT (--redis-ca, --redis-cert) are for TLS: the address in REDIS_URL has to begin with rediss"
    );
    let read = |setting: &str, file: &Path| {
        std::fs::read(file).map_err(|error| {
            anyhow::anyhow!("{setting}: {} cannot be read: {error}", file.display())
        })
    };
    let root_cert = authority.map(|file| read("REDIS_CA (--redis-ca)", file)).transpose()?;
    let own = own.map(|(certificate, key)| {
        anyhow::Ok(redis::ClientTlsConfig {
            client_cert: read("REDIS_CERT (--redis-cert)", certificate)?,
            client_key: read("REDIS_KEY (--redis-key)", key)?,
        })
    });
    let certificates = redis::TlsCertificates { client_tls: own.transpose()?, root_cert };
    server
        .with_certificates(&certificates)
        .map_err(|error| anyhow::anyhow!("REDIS_CA, REDIS_CERT, REDIS_KEY: not usable: {error}"))
}

/// Connects; `timeout` limits connecting and every command.
///
/// # Errors
/// One sentence that names the setting: it cannot be reached, or is not what the address says, or too old.
pub async fn connect(server: Server, timeout: Duration) -> anyhow::Result<Redis> {
    let redis = Redis::new(server, timeout, timeout)
        .map_err(|error| anyhow::anyhow!("REDIS_URL (--redis-url): {error}"))?;
    redis.ping().await.map_err(|error| sentence(&error))?;
    redis_requirements::check(&redis).await?;
    Ok(redis)
}

/// Makes the cache's connection for invalidations.
pub struct Subscriptions(pub Redis);

impl cache::ClientSource for Subscriptions {
    fn client<'a>(
        &'a self,
        channel: &'a str,
    ) -> Pin<Box<dyn Future<Output = redis::RedisResult<redis::Client>> + Send + 'a>> {
        Box::pin(self.0.client_of(channel))
    }

    fn moved(&self, channel: &str) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(self.0.moved(channel))
    }

    fn failed(&self) {
        self.0.recheck();
    }
}
