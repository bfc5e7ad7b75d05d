//! A connection to one node that also receives what the node sends by itself: messages, and changes of
//! tracked keys. In RESP3 (Redis 6 or later) these and the replies share a connection.

use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, PushInfo, PushKind, RedisError};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::outcome::Outcome;

/// A connection of one's own to one node, with what the node sends by itself: made by
/// [`Redis::pushes`](crate::Redis::pushes).
#[derive(Debug)]
pub struct PushConnection {
    /// For commands such as SUBSCRIBE and CLIENT TRACKING.
    pub commands: MultiplexedConnection,
    pub(crate) pushes: UnboundedReceiver<PushInfo>,
}

/// Why a [`PushConnection`] is of no more use; with the cause in words.
#[derive(Debug, Clone)]
pub enum Unusable {
    /// The server, or a proxy in front of it, will refuse the same command or protocol again.
    Refused(String),
    /// The connection could not be made, or it broke.
    Broken(String),
}

impl From<RedisError> for Unusable {
    fn from(error: RedisError) -> Self {
        let refused = error.kind() == ErrorKind::RESP3NotSupported
            || Outcome::of(&error) == Outcome::Rejected;
        let cause = error.to_string();
        if refused {
            Self::Refused(cause)
        } else {
            Self::Broken(cause)
        }
    }
}

impl PushConnection {
    /// What the node sends next.
    ///
    /// # Errors
    /// [`Unusable::Broken`] when the connection is closed.
    ///
    /// # Cancellation
    /// Can be dropped; nothing is lost.
    pub async fn next(&mut self) -> Result<PushInfo, Unusable> {
        match self.pushes.recv().await {
            Some(push) if push.kind != PushKind::Disconnection => Ok(push),
            _ => Err(Unusable::Broken("the connection was closed".to_owned())),
        }
    }
}
