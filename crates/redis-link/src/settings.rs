//! Time limits, and settings of sockets.

use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;

/// How many commands may queue for the socket before callers wait. The default of redis-rs, 50, is
/// below the number that a burst of requests has in flight.
pub(crate) const PIPELINE_BUFFER: usize = 4096;

/// The shortest time limit.
const SHORTEST: Duration = Duration::from_millis(10);

/// The longest time limit; with longer ones, sums of instants could overflow.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// How long opening a connection, and a command, may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeouts {
    pub(crate) connect: Duration,
    pub(crate) command: Duration,
}

impl Timeouts {
    pub(crate) fn new(connect: Duration, command: Duration) -> Self {
        Self {
            connect: connect.clamp(SHORTEST, LONGEST),
            command: command.clamp(SHORTEST, LONGEST),
        }
    }

    /// TCP settings: no Nagle delay; a connection whose peer vanished is closed after five command
    /// timeouts without an acknowledgement (where the system can do that); a silent one is probed.
    pub(crate) fn tcp(self) -> TcpSettings {
        let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(5));
        let keepalive = keepalive.with_interval(Duration::from_secs(2));
        let settings = TcpSettings::default()
            .set_nodelay(true)
            .set_keepalive(keepalive);
        #[cfg(target_os = "linux")]
        let settings = settings.set_user_timeout(self.command * 5);
        settings
    }
}

/// Whether the TLS that this address asks for can be used.
///
/// # Errors
/// When rustls has no crypto provider: connecting would panic.
#[cfg(feature = "tls-rustls")]
pub(crate) fn check_tls(address: &redis::ConnectionInfo) -> redis::RedisResult<()> {
    use redis::{ConnectionAddr, ErrorKind};
    use rustls::crypto::CryptoProvider;

    if !matches!(address.addr(), ConnectionAddr::TcpTls { .. }) {
        return Ok(());
    }
    #[cfg(feature = "tls-rustls-ring")]
    if CryptoProvider::get_default().is_none() {
        // Otherwise rustls would panic where another crate has built it with a second provider.
        drop(rustls::crypto::ring::default_provider().install_default());
    }
    // rustls does not say in another way whether it was built with exactly one provider.
    if CryptoProvider::get_default().is_some()
        || std::panic::catch_unwind(|| drop(rustls::ClientConfig::builder())).is_ok()
    {
        return Ok(());
    }
    Err((
        ErrorKind::InvalidClientConfig,
        "TLS needs one crypto provider: CryptoProvider::install_default of rustls, or the feature \
         tls-rustls-ring",
    )
        .into())
}
