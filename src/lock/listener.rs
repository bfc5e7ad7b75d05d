//! The one pub/sub connection of a process: keeps the server's subscriptions equal to what
//! [`super::wake`] wants, and reconnects. Knows nothing of locks.
//!
//! PUBLISH and SUBSCRIBE are what a single Redis needs. Sharded channels (SPUBLISH/SSUBSCRIBE,
//! Redis 7) matter on a Redis Cluster only, which these locks do not speak yet.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use redis::{Client, RedisResult, Value};
use tokio_util::sync::CancellationToken;

use super::LockConfig;
use super::wake::Topics;

/// Pauses between attempts to connect: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// How often an open connection is asked whether it still lives.
const PING_EVERY: Duration = Duration::from_secs(5);

/// Listen until `stop`.
pub(super) async fn run(
    topics: Arc<Topics>,
    client: Client,
    config: LockConfig,
    stop: CancellationToken,
) {
    let mut pause = PAUSES.0;
    while !stop.is_cancelled() {
        // A process in which nobody waits needs no connection.
        if topics.len() == 0 {
            tokio::select! {
                () = topics.changed() => {}
                () = stop.cancelled() => return,
            }
            continue;
        }
        let end = tokio::select! {
            end = session(&topics, &client, &config, &mut pause) => end,
            () = stop.cancelled() => return,
        };
        topics.disconnected();
        tracing::warn!(cause = end, "lock wake-up connection lost; waiters poll until it is back");
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stop.cancelled() => return,
        }
        pause = (pause * 2).min(PAUSES.1);
    }
}

/// One connection, from connecting to its end; returns the cause. `pause` is reset once it works.
async fn session(
    topics: &Topics,
    client: &Client,
    config: &LockConfig,
    pause: &mut Duration,
) -> String {
    let connected = within(config.connect_timeout, client.get_async_pubsub()).await;
    let (mut sink, mut messages) = match connected {
        Ok(connection) => connection.split(),
        Err(cause) => return cause,
    };
    let limit = config.command_timeout;
    let mut have: HashSet<Arc<str>> = HashSet::new();
    let mut ping = tokio::time::interval(PING_EVERY);
    ping.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let (more, less) = topics.difference(&have);
        if !more.is_empty() {
            let names: Vec<&str> = more.iter().map(|channel| &**channel).collect();
            if let Err(cause) = within(limit, sink.subscribe(names)).await {
                return cause;
            }
            topics.confirmed(&more);
            have.extend(more);
            *pause = PAUSES.0;
        }
        if !less.is_empty() {
            let names: Vec<&str> = less.iter().map(|channel| &**channel).collect();
            if let Err(cause) = within(limit, sink.unsubscribe(names)).await {
                return cause;
            }
            have.retain(|channel| !less.contains(channel));
        }
        tokio::select! {
            message = messages.next() => match message {
                Some(message) => {
                    topics.deliver(message.get_channel_name(), message.get_payload_bytes());
                }
                None => return "the connection was closed".to_owned(),
            },
            () = topics.changed() => {}
            _ = ping.tick() => {
                if let Err(cause) = within(limit, sink.ping::<Value>()).await {
                    return cause;
                }
            }
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
