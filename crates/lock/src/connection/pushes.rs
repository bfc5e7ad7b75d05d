//! A connection to one node that also receives what the node sends by itself: messages, and changes of
//! tracked keys. In RESP3 (Redis 6 or later) these and the replies share a connection.

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ErrorKind, ProtocolVersion, PushInfo, PushKind, RedisError,
};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::config::LockConfig;
use crate::connection::backend::Backend;
use crate::connection::failure::Failure;

/// A connection, and what the node sends by itself.
pub(crate) struct PushConnection {
    pub(crate) commands: MultiplexedConnection,
    pushes: UnboundedReceiver<PushInfo>,
}

/// Why a connection is of no more use; with the cause in words.
pub(crate) enum Unusable {
    /// The server, or a proxy in front of it, will refuse the same command or protocol again.
    Refused(String),
    /// It could not be made, or broke.
    Broken(String),
}

impl From<RedisError> for Unusable {
    fn from(error: RedisError) -> Self {
        let refused = error.kind() == ErrorKind::RESP3NotSupported
            || matches!(Failure::of(&error), Failure::Rejected(_));
        let cause = error.to_string();
        if refused { Self::Refused(cause) } else { Self::Broken(cause) }
    }
}

impl PushConnection {
    pub(crate) async fn open(
        backend: &Backend,
        address: &str,
        config: &LockConfig,
    ) -> Result<Self, Unusable> {
        let client = backend.client(address)?;
        let info = client.get_connection_info().clone();
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let client = Client::open(info.set_redis_settings(settings))?;
        let (sender, pushes) = unbounded_channel();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(config.connect_timeout))
            .set_response_timeout(Some(config.command_timeout))
            .set_push_sender(sender);
        let commands = client.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(Self { commands, pushes })
    }

    /// What the node sends next.
    pub(crate) async fn next(&mut self) -> Result<PushInfo, Unusable> {
        match self.pushes.recv().await {
            Some(push) if push.kind != PushKind::Disconnection => Ok(push),
            _ => Err(Unusable::Broken("the connection was closed".to_owned())),
        }
    }
}
