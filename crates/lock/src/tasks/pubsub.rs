//! One Pub/Sub connection: subscribe, unsubscribe, receive. Uses RESP3 (Redis 6 or later), in which
//! messages and the answers to PINGs share a connection.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, PushInfo, PushKind, RedisResult, ServerErrorKind, Value, from_redis_value};
use redis_link::{PushConnection, Redis, Unusable};
use tokio::time::{Interval, MissedTickBehavior};

/// How often an open connection is checked.
const PING_EVERY: Duration = Duration::from_secs(5);

pub(crate) struct PubSubConnection {
    connection: PushConnection,
    /// Whether sharded channels are subscribed to as well.
    sharded: bool,
    /// Confirmations of SUNSUBSCRIBE that are still expected. One more than that means that the server
    /// has ended a subscription: the slot has moved.
    unsubscribing: usize,
    ping: Interval,
}

impl PubSubConnection {
    pub(crate) async fn open(redis: &Redis, address: &str) -> Result<Self, Unusable> {
        let connection = redis.pushes(address).await?;
        let mut ping = tokio::time::interval(PING_EVERY);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self {
            connection,
            sharded: redis.is_cluster(),
            unsubscribing: 0,
            ping,
        })
    }

    /// Subscribe; returns when the server has answered about each channel. The result is the channels
    /// that the user has no right to, each with the server's reason.
    pub(crate) async fn subscribe(
        &mut self,
        channels: &[Arc<str>],
    ) -> Result<HashMap<Arc<str>, String>, Unusable> {
        let mut refused = self.subscribe_with("SUBSCRIBE", channels).await?;
        if !self.sharded {
            return Ok(refused);
        }
        match self.subscribe_with("SSUBSCRIBE", channels).await {
            Ok(refused_sharded) => refused.extend(refused_sharded),
            // Before Redis 7 there are no sharded channels.
            Err(error) if error.to_string().contains("unknown command") => self.sharded = false,
            Err(error) => return Err(error.into()),
        }
        Ok(refused)
    }

    /// As [`for_each`](Self::for_each); returns the channels that the user has no right to.
    async fn subscribe_with(
        &mut self,
        command: &str,
        channels: &[Arc<str>],
    ) -> RedisResult<HashMap<Arc<str>, String>> {
        let mut all = redis::pipe();
        for channel in channels {
            all.cmd(command).arg(&**channel);
        }
        let replies: Vec<RedisResult<Value>> = all
            .ignore_errors()
            .query_async(&mut self.connection.commands)
            .await?;
        let mut refused = HashMap::new();
        for (channel, reply) in channels.iter().zip(replies) {
            match reply {
                Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm) => {
                    refused.insert(channel.clone(), error.to_string());
                }
                reply => drop(reply?),
            }
        }
        Ok(refused)
    }

    /// Unsubscribe; returns when the server has confirmed.
    pub(crate) async fn unsubscribe(&mut self, channels: &[Arc<str>]) -> Result<(), Unusable> {
        // Without the right to unsubscribe, a new connection subscribes to the channels that are left.
        self.send_unsubscribes(channels)
            .await
            .map_err(|error| Unusable::Broken(error.to_string()))
    }

    async fn send_unsubscribes(&mut self, channels: &[Arc<str>]) -> RedisResult<()> {
        self.for_each("UNSUBSCRIBE", channels).await?;
        if self.sharded {
            self.unsubscribing += channels.len();
            self.for_each("SUNSUBSCRIBE", channels).await?;
        }
        Ok(())
    }

    /// Channel and text of the next message.
    pub(crate) async fn next(&mut self) -> Result<(String, Vec<u8>), Unusable> {
        loop {
            tokio::select! {
                push = self.connection.next() => match push? {
                    PushInfo { kind: PushKind::Message | PushKind::SMessage, data } => {
                        if let Ok(message) = from_redis_value(Value::Array(data)) {
                            return Ok(message);
                        }
                    }
                    PushInfo { kind: PushKind::SUnsubscribe, .. } => {
                        let Some(unsubscribing) = self.unsubscribing.checked_sub(1) else {
                            return Err(Unusable::Broken("the slot has moved".to_owned()));
                        };
                        self.unsubscribing = unsubscribing;
                    }
                    _ => {}
                },
                _ = self.ping.tick() => {
                    let ping: RedisResult<Value> =
                        redis::cmd("PING").query_async(&mut self.connection.commands).await;
                    ping.map_err(|error| Unusable::Broken(error.to_string()))?;
                }
            }
        }
    }

    /// One command for each channel: sharded channels of different slots cannot share one, and a
    /// command with several channels has several replies.
    async fn for_each(&mut self, command: &str, channels: &[Arc<str>]) -> RedisResult<()> {
        let mut all = redis::pipe();
        for channel in channels {
            all.cmd(command).arg(&**channel).ignore();
        }
        all.exec_async(&mut self.connection.commands).await
    }
}
