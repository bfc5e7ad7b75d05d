//! Redis: one multiplexed connection that reconnects by itself. Commands are bounded in time, so a
//! Redis that hangs costs a request its timeout and never more.

use std::time::Duration;

use anyhow::Context;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::io::tcp::TcpSettings;
use redis::{Client, IntoConnectionInfo};
use secrecy::{ExposeSecret, SecretString};

/// How long sent bytes may stay unacknowledged before the connection is given up (Linux only). This
/// is about a peer that vanished without a word; a slow answer is the command timeout's affair.
#[cfg(target_os = "linux")]
const SILENCE: Duration = Duration::from_secs(5);

/// A client for `url`, with `TCP_NODELAY` set: Redis commands are small, and Nagle's algorithm would
/// delay them. Half-open connections are noticed, so that the next command gets a new one.
pub fn client(url: &SecretString) -> anyhow::Result<Client> {
    let tcp = TcpSettings::default().set_nodelay(true);
    #[cfg(target_os = "linux")]
    let tcp = tcp.set_user_timeout(SILENCE);
    let info = url
        .expose_secret()
        .into_connection_info()
        .context("REDIS_URL is not a Redis address; it looks like redis://127.0.0.1:6379/")?
        .set_tcp_settings(tcp);
    Ok(Client::open(info)?)
}

/// Connects; `timeout` bounds connecting and every command.
pub async fn connect(client: &Client, timeout: Duration) -> anyhow::Result<ConnectionManager> {
    let config = ConnectionManagerConfig::new()
        .set_connection_timeout(Some(timeout))
        .set_response_timeout(Some(timeout))
        .set_number_of_retries(1)
        .set_max_delay(Duration::from_millis(250))
        // The default of 50 makes a burst of requests queue for the pipe itself.
        .set_pipeline_buffer_size(4096);
    ConnectionManager::new_with_config(client.clone(), config)
        .await
        .context("cannot connect to Redis; is it running, and is REDIS_URL right?")
}
