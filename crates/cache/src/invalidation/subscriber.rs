//! The pub/sub connection on which a process receives the invalidations of other nodes. It
//! reconnects by itself. The cache in memory is enabled only while it is up.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use redis::{RedisResult, Value};
use redis_link::Redis;
use tokio_util::sync::CancellationToken;

use crate::keys::INVALIDATIONS;
use crate::local_cache::LocalCache;
use crate::stats::CacheCounters;

/// The first pause before reconnecting; doubled up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// The longest pause before reconnecting.
const MAX_PAUSE: Duration = Duration::from_millis(250);

/// Interval between PINGs on the connection. If it is lost in silence, entries in memory may be out
/// of date until a PING fails, but never longer than their time to live.
const PING_INTERVAL: Duration = Duration::from_secs(2);

/// Timeout for connecting, subscribing and each PING.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Receives invalidations and applies them to the cache in memory.
pub(crate) struct InvalidationSubscriber {
    pub(crate) redis: Redis,
    /// The id of this process in messages.
    pub(crate) node_id: String,
    pub(crate) local: Arc<LocalCache>,
    pub(crate) counters: Arc<CacheCounters>,
}

impl InvalidationSubscriber {
    /// Subscribes, receives and reconnects until `stop`.
    pub(crate) async fn run(&self, stop: &CancellationToken) {
        // After a panic `run` is started again. The cache may be enabled still, but messages were lost meanwhile.
        self.local.disable();
        let mut pause = FIRST_PAUSE;
        // One warning per outage, not per attempt.
        let mut warned = false;
        loop {
            let end = tokio::select! {
                end = self.receive() => Some(end),
                () = stop.cancelled() => None,
            };
            let was_connected = self.local.disable();
            let Some(error) = end else { return };
            self.redis.recheck();
            if was_connected {
                self.counters.subscription_losses.increment();
                pause = FIRST_PAUSE;
                warned = false;
            }
            if !warned {
                tracing::warn!(
                    error,
                    "no subscription to invalidations; memory is not used"
                );
                warned = true;
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => return,
            }
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    /// Connects, subscribes and receives until the connection fails. Returns the cause.
    async fn receive(&self) -> String {
        let mut moved = pin!(self.redis.moved(INVALIDATIONS));
        let client = match with_timeout(self.redis.client_of(INVALIDATIONS)).await {
            Ok(client) => client,
            Err(cause) => return cause,
        };
        let connected = with_timeout(client.get_async_pubsub()).await;
        let (mut sink, mut messages) = match connected {
            Ok(connection) => connection.split(),
            Err(cause) => return cause,
        };
        if let Err(cause) = with_timeout(sink.subscribe(INVALIDATIONS)).await {
            return cause;
        }
        self.local.enable();
        let mut ping = tokio::time::interval(PING_INTERVAL);
        ping.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                message = messages.next() => match message {
                    Some(message) => self.apply(message.get_payload_bytes()),
                    None => return "the connection was closed".to_owned(),
                },
                () = &mut moved => return "another server is the master now".to_owned(),
                _ = ping.tick() => {
                    if let Err(cause) = with_timeout(sink.ping::<Value>()).await {
                        return cause;
                    }
                }
            }
        }
    }

    /// Applies a message, `<node id> <key>`, of another process. This process applied its own before it sent them.
    fn apply(&self, message: &[u8]) {
        let Ok(message) = std::str::from_utf8(message) else {
            return;
        };
        let Some((node_id, key)) = message.split_once(' ') else {
            return;
        };
        if node_id != self.node_id {
            self.local.invalidate(key);
            self.counters.invalidations_received.increment();
        }
    }
}

async fn with_timeout<T>(action: impl Future<Output = RedisResult<T>>) -> Result<T, String> {
    match tokio::time::timeout(TIMEOUT, action).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {TIMEOUT:?}")),
    }
}
