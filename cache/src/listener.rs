//! The one pub/sub connection on which a process hears what to forget; it reconnects by itself.
//! The memory is trusted only while it stands.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use redis::{Client, RedisResult, Value};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::local::Local;
use super::stats::CacheCounters;

/// Pauses between attempts to connect: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(250));

/// How often an open connection is asked whether it still lives, and how long it may take to say.
/// Until a silent loss is noticed, the time to live in memory bounds what can be missed.
const PING: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(1));

/// What the listener needs of the cache.
pub(super) struct Listener {
    pub(super) client: Client,
    pub(super) channel: String,
    /// The name of this process in messages.
    pub(super) node: String,
    pub(super) local: Arc<Local>,
    pub(super) counters: Arc<CacheCounters>,
    /// Told when Redis can be reached again.
    pub(super) connected: Arc<Notify>,
    pub(super) stop: CancellationToken,
}

impl Listener {
    /// Listen until `stop`.
    pub(super) async fn run(&self) {
        // After a panic this runs anew, and what was said in between is lost.
        self.local.distrust();
        let (mut pause, mut told) = (PAUSES.0, false);
        loop {
            let end = tokio::select! {
                end = self.session() => Some(end),
                () = self.stop.cancelled() => None,
            };
            let lost = self.local.distrust();
            let Some(cause) = end else { return };
            if lost {
                self.counters.listener_losses.up();
                (pause, told) = (PAUSES.0, false);
            }
            if !told {
                tracing::warn!(
                    fault = cause,
                    "no invalidations are heard; nothing is kept in memory"
                );
                told = true;
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.stop.cancelled() => return,
            }
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// One connection, from connecting to its end; returns the cause.
    async fn session(&self) -> String {
        let connected = within(PING.1, self.client.get_async_pubsub()).await;
        let (mut sink, mut messages) = match connected {
            Ok(connection) => connection.split(),
            Err(cause) => return cause,
        };
        if let Err(cause) = within(PING.1, sink.subscribe(&self.channel)).await {
            return cause;
        }
        self.local.trust();
        self.connected.notify_one();
        let mut ping = tokio::time::interval(PING.0);
        ping.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                message = messages.next() => match message {
                    Some(message) => self.hear(message.get_payload_bytes()),
                    None => return "the connection was closed".to_owned(),
                },
                _ = ping.tick() => {
                    if let Err(cause) = within(PING.1, sink.ping::<Value>()).await {
                        return cause;
                    }
                }
            }
        }
    }

    /// `<node> <key>`. Its own messages a process has acted upon already.
    fn hear(&self, message: &[u8]) {
        let Ok(message) = std::str::from_utf8(message) else { return };
        let Some((node, key)) = message.split_once(' ') else { return };
        if node != self.node {
            self.local.forget(key);
            self.counters.invalidations_received.up();
        }
    }
}

async fn within<T>(
    limit: Duration,
    action: impl Future<Output = RedisResult<T>>,
) -> Result<T, String> {
    match tokio::time::timeout(limit, action).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {limit:?}")),
    }
}
