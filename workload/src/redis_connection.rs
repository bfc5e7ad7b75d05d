//! Connections to the service's Redis, for sessions and injected faults.

use std::time::Duration;

use redis::{AsyncConnectionConfig, aio::MultiplexedConnection};

use crate::Error;

/// Longest wait for a connection or a reply: the machine may be busy.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Connects to the server at `url`.
///
/// # Errors
/// [`Error::Redis`].
pub async fn connect(url: &str) -> Result<MultiplexedConnection, Error> {
    let failed = |source| Error::Redis { what: "while connecting", source };
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(TIMEOUT))
        .set_response_timeout(Some(TIMEOUT));
    let client = redis::Client::open(url).map_err(failed)?;
    client.get_multiplexed_async_connection_with_config(&config).await.map_err(failed)
}
