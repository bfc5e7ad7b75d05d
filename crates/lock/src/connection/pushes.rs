//! A connection to one node that also receives what the node sends by itself: messages, and changes of
//! tracked keys. In RESP3 (Redis 6 or later) these and the replies share a connection.

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ProtocolVersion, PushInfo, RedisResult};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::config::LockConfig;
use crate::connection::backend::Backend;

/// Connect to the node at `address`.
///
/// # Errors
/// When it cannot be reached, or has no RESP3.
pub(crate) async fn open(
    backend: &Backend,
    address: &str,
    config: &LockConfig,
) -> RedisResult<(MultiplexedConnection, UnboundedReceiver<PushInfo>)> {
    let client = backend.client(address)?;
    let info = client.get_connection_info().clone();
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    let client = Client::open(info.set_redis_settings(settings))?;
    let (sender, pushes) = unbounded_channel();
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(config.connect_timeout))
        .set_response_timeout(Some(config.command_timeout))
        .set_push_sender(sender);
    Ok((client.get_multiplexed_async_connection_with_config(&config).await?, pushes))
}
