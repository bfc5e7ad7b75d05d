//! Socket and connection settings, derived from [`LockConfig`].

use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{ConnectionInfo, RedisResult};

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

/// How long opening a connection, and a command, may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeouts {
    pub(crate) connect: Duration,
    pub(crate) command: Duration,
}

impl From<&LockConfig> for Timeouts {
    fn from(config: &LockConfig) -> Self {
        Self { connect: config.connect_timeout, command: config.command_timeout }
    }
}

/// Whether the TLS that this address asks for can be used.
///
/// # Errors
/// When rustls has no crypto provider: connecting would panic.
#[cfg(feature = "tls-rustls")]
pub(crate) fn check_tls(address: &ConnectionInfo) -> RedisResult<()> {
    use redis::{ConnectionAddr, ErrorKind};
    use rustls::crypto::CryptoProvider;

    if !matches!(address.addr(), ConnectionAddr::TcpTls { .. }) {
        return Ok(());
    }
    #[cfg(feature = "tls-rustls-ring")]
    if CryptoProvider::get_default().is_none() {
        // Else rustls would panic where another crate has built it with a second provider.
        drop(rustls::crypto::ring::default_provider().install_default());
    }
    // rustls does not say otherwise whether it was built with one provider.
    let builds = || std::panic::catch_unwind(|| drop(rustls::ClientConfig::builder())).is_ok();
    if CryptoProvider::get_default().is_some() || builds() {
        return Ok(());
    }
    Err((
        ErrorKind::InvalidClientConfig,
        "TLS needs one crypto provider: CryptoProvider::install_default of rustls, or the feature \
         tls-rustls-ring",
    )
        .into())
}

#[cfg(not(feature = "tls-rustls"))]
pub(crate) fn check_tls(_: &ConnectionInfo) -> RedisResult<()> {
    Ok(())
}
