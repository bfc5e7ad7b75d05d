//! Redis: one multiplexed connection that reconnects by itself and is replaced when it goes silent. Every command has a
//! time limit, so that a Redis that hangs delays a request by no more than that.

use std::time::Duration;

use anyhow::Context;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{Client, IntoConnectionInfo};
use secrecy::{ExposeSecret, SecretString};

pub use lock::SharedConnection;

/// How long sent bytes may stay unacknowledged before the connection is closed (Linux only). This detects a peer that
/// vanished; a slow reply is up to the command's time limit.
#[cfg(target_os = "linux")]
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(5);

/// Keepalive: after this time without traffic the system sends probes, [`PROBE_EVERY`] apart.
const PROBE_AFTER: Duration = Duration::from_secs(5);

/// Time between two probes. How many may fail is the system's default where there is no [`TCP_USER_TIMEOUT`].
const PROBE_EVERY: Duration = Duration::from_secs(2);

/// A client for `url`, with `TCP_NODELAY` set: Redis commands are small, and Nagle's algorithm would delay them.
/// Half-open connections are detected, so that the next command gets a new one.
pub fn client(url: &SecretString) -> anyhow::Result<Client> {
    let keepalive = TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_EVERY);
    let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    #[cfg(target_os = "linux")]
    let tcp = tcp.set_user_timeout(TCP_USER_TIMEOUT);
    let info = url
        .expose_secret()
        .into_connection_info()
        .context("REDIS_URL is not a Redis address; it looks like redis://127.0.0.1:6379/")?
        .set_tcp_settings(tcp);
    Ok(Client::open(info)?)
}

/// Connects; `timeout` limits connecting and every command.
pub async fn connect(client: &Client, timeout: Duration) -> anyhow::Result<SharedConnection> {
    let config = ConnectionManagerConfig::new()
        .set_connection_timeout(Some(timeout))
        .set_response_timeout(Some(timeout))
        .set_number_of_retries(1)
        .set_max_delay(Duration::from_millis(250))
        // The default of 50 makes a burst of requests queue before the connection.
        .set_pipeline_buffer_size(4096);
    let manager = ConnectionManager::new_with_config(client.clone(), config.clone())
        .await
        .context("cannot connect to Redis; is it running, and is REDIS_URL right?")?;
    Ok(SharedConnection::new(manager, client.clone(), config))
}
