//! Socket and connection settings, derived from [`LockConfig`].

use std::time::Duration;

use redis::aio::ConnectionManagerConfig;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;

use crate::config::LockConfig;

/// How many commands may queue for the socket before callers wait. The default of redis-rs, 50, is
/// below the number that a burst of requests has in flight.
pub(crate) const PIPELINE_BUFFER: usize = 4096;

/// TCP settings: no Nagle delay; a connection whose peer vanished is closed after five command
/// timeouts without an acknowledgement (where the system can do that); a silent one is probed.
pub(crate) fn tcp(config: &LockConfig) -> TcpSettings {
    let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(5));
    let keepalive = keepalive.with_interval(Duration::from_secs(2));
    let settings = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(config.command_timeout * 5);
    #[cfg(not(target_os = "linux"))]
    let _ = config;
    settings
}

/// Settings of the connection that commands go over.
pub(crate) fn manager(config: &LockConfig) -> ConnectionManagerConfig {
    ConnectionManagerConfig::new()
        .set_response_timeout(Some(config.command_timeout))
        .set_connection_timeout(Some(config.connect_timeout))
        // A command tries to connect once and then fails: callers learn at once that Redis is
        // unreachable, and the next command is the next try.
        .set_number_of_retries(0)
        .set_pipeline_buffer_size(PIPELINE_BUFFER)
}
