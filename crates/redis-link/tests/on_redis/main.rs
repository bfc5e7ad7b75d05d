//! Integration tests on throw-away Redis servers: what becomes of a command when a connection breaks, a
//! server hangs, a slot moves or a master is replaced.

#![allow(clippy::unwrap_used)]

mod addresses;
mod cluster;
mod outcomes;
mod sentinel;
mod sentinel_answers;
#[cfg(any(feature = "tls-rustls-ring", feature = "tls-native-tls"))]
mod tls;

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, RedisConnectionInfo, RedisError};
use redis_link::{Outcome, Redis, Server};
use tokio::task::JoinHandle;

/// Time limit for a condition to become true.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The limit of commands, and of connecting, where none of them has to fail: long enough for a busy machine.
const PATIENT: Duration = Duration::from_secs(10);

/// The limit of commands that nobody answers.
const LIMIT: Duration = Duration::from_millis(500);

/// How much later than its limit a call may end on a busy machine.
const LATE: Duration = Duration::from_secs(3);

async fn eventually(what: &str, condition: impl AsyncFnMut() -> bool) {
    testkit::wait::eventually(what, TIMEOUT, condition).await;
}

/// The output of `future`; fails after [`TIMEOUT`].
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let output = tokio::time::timeout(TIMEOUT, future).await;
    output.unwrap_or_else(|_| panic!("not within {TIMEOUT:?}: {what}"))
}

/// Increments the key.
async fn count(redis: &Redis, key: &str) -> Result<i64, RedisError> {
    redis.commands().incr(key, 1).await
}

/// Fails unless the command's outcome is this one.
fn assert_outcome<T: std::fmt::Debug>(result: Result<T, RedisError>, outcome: Outcome) {
    let error = result.unwrap_err();
    assert_eq!(Outcome::of(&error), outcome, "{error:?}");
}

/// The master that these sentinels know under this name, and a task that watches it.
fn behind(
    sentinels: impl IntoIterator<Item = String>,
    master: &str,
    limit: Duration,
) -> (Redis, JoinHandle<()>) {
    let server = Server::sentinel(sentinels, master, RedisConnectionInfo::default()).unwrap();
    let redis = Redis::new(server, limit, limit).unwrap();
    let watched = redis.clone();
    (redis, tokio::spawn(async move { watched.monitor().await }))
}

/// Whether a command now is executed by the server to which `raw` leads.
async fn is_on(redis: &Redis, raw: &mut MultiplexedConnection) -> bool {
    const KEY: &str = "where";
    let token = format!("{:?}", std::time::Instant::now());
    let written: Result<(), _> = redis.commands().set(KEY, &token).await;
    // A promotion meanwhile closes this connection, too, and the master may be another one.
    let found = raw.get::<_, Option<String>>(KEY).await.unwrap_or_default();
    written.is_ok() && found.as_ref() == Some(&token)
}
