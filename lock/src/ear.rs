//! One subscribing connection: subscribe, unsubscribe, the next message. Speaks RESP3 (Redis 6 and
//! later), in which messages and the answers to PINGs share a connection.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ProtocolVersion, PushInfo, PushKind, RedisError, RedisResult,
    Value, from_redis_value,
};
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior};

use super::LockConfig;
use super::conn::Backend;

/// How often an open connection is asked whether it still lives.
const PING_EVERY: Duration = Duration::from_secs(5);

/// A connection that listens.
pub(super) struct Ear {
    connection: MultiplexedConnection,
    pushes: mpsc::UnboundedReceiver<PushInfo>,
    /// Whether channels that belong to slots are subscribed to as well.
    sharded: bool,
    /// Confirmations of SUNSUBSCRIBE that are to come. One too many is the server's own doing: the
    /// slot has moved.
    leaving: usize,
    ping: Interval,
}

impl Ear {
    /// Connect to `place`.
    pub(super) async fn open(
        backend: &Backend,
        place: &str,
        config: &LockConfig,
    ) -> Result<Self, String> {
        let words = |error: RedisError| error.to_string();
        let client = backend.client(place).map_err(words)?;
        let info = client.get_connection_info().clone();
        let login = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let client = Client::open(info.set_redis_settings(login)).map_err(words)?;
        let (sender, pushes) = mpsc::unbounded_channel();
        let settings = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(config.connect_timeout))
            .set_response_timeout(Some(config.command_timeout))
            .set_push_sender(sender);
        let connection =
            client.get_multiplexed_async_connection_with_config(&settings).await.map_err(words)?;
        let mut ping = tokio::time::interval(PING_EVERY);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self { connection, pushes, sharded: backend.has_slots(), leaving: 0, ping })
    }

    /// Subscribe; returns when the server has confirmed.
    pub(super) async fn subscribe(&mut self, channels: &[Arc<str>]) -> Result<(), String> {
        self.each("SUBSCRIBE", channels).await.map_err(|error| error.to_string())?;
        if !self.sharded {
            return Ok(());
        }
        match self.each("SSUBSCRIBE", channels).await {
            Ok(()) => Ok(()),
            // Before Redis 7 there are no sharded channels, and nobody publishes on them.
            Err(error) if error.to_string().contains("unknown command") => {
                self.sharded = false;
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// Unsubscribe; returns when the server has confirmed.
    pub(super) async fn unsubscribe(&mut self, channels: &[Arc<str>]) -> Result<(), String> {
        let left = async {
            self.each("UNSUBSCRIBE", channels).await?;
            if self.sharded {
                self.leaving += channels.len();
                self.each("SUNSUBSCRIBE", channels).await?;
            }
            Ok(())
        };
        left.await.map_err(|error: RedisError| error.to_string())
    }

    /// The channel of the next message.
    ///
    /// # Errors
    /// The cause, when the connection is of no more use.
    pub(super) async fn next(&mut self) -> Result<(String, Vec<u8>), String> {
        loop {
            tokio::select! {
                push = self.pushes.recv() => match push {
                    Some(PushInfo { kind: PushKind::Message | PushKind::SMessage, data }) => {
                        if let Ok(heard) = from_redis_value(Value::Array(data)) {
                            return Ok(heard);
                        }
                    }
                    Some(PushInfo { kind: PushKind::SUnsubscribe, .. }) => {
                        self.leaving = self.leaving.checked_sub(1).ok_or("the slot has moved")?;
                    }
                    Some(PushInfo { kind: PushKind::Disconnection, .. }) | None => {
                        return Err("the connection was closed".to_owned());
                    }
                    Some(_) => {}
                },
                _ = self.ping.tick() => {
                    let ping: RedisResult<Value> =
                        redis::cmd("PING").query_async(&mut self.connection).await;
                    ping.map_err(|error| error.to_string())?;
                }
            }
        }
    }

    /// A command for each channel. (Sharded channels of different slots cannot share one; and one
    /// command with several channels is answered several times.)
    async fn each(&mut self, command: &str, channels: &[Arc<str>]) -> RedisResult<()> {
        let mut all = redis::pipe();
        for channel in channels {
            all.cmd(command).arg(&**channel).ignore();
        }
        all.exec_async(&mut self.connection).await
    }
}
