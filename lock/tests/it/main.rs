//! The lock module against real Redis servers of its own: what it writes, how it waits, what it
//! leaves behind, and what it says when Redis fails.

#![allow(clippy::unwrap_used)]
#![allow(dead_code)]

mod cancel;
mod cluster;
mod exclusion;
mod fair;
mod family;
mod faults;
mod fenced;
mod history;
mod leased_semaphore;
mod lossy;
mod lost;
mod majority;
mod multi;
mod process;
mod read_write;
mod reentry;
mod replica;
mod semaphore;
mod sentinel;
mod setnx;
mod support;
mod wait;
mod wire;

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redisson_lock::{LockConfig, LockUsage, Locks};

use crate::support::redis_server::RedisServer;

/// The lease of most tests: short, so that expiry and renewal are seen, and still long enough
/// that a busy machine does not lose a lock by accident.
const LEASE: Duration = Duration::from_millis(900);

/// How long a condition may take to come true.
const PATIENCE: Duration = Duration::from_secs(20);

/// Locks on `server` with a short lease.
async fn locks(server: &RedisServer) -> Locks {
    let config = LockConfig::default().with_lease(LEASE);
    Locks::connect(server.client(), config).await.expect("connect")
}

/// Wait until `condition` holds.
async fn eventually(what: &str, condition: impl AsyncFnMut() -> bool) {
    support::wait::eventually(what, PATIENCE, condition).await;
}

/// Wait until nothing is left: no key but the counters of fenced locks, which have to outlive them,
/// no subscription on the server, no entry in the process.
async fn nothing_left(server: &RedisServer, locks: &[&Locks]) {
    let mut conn = server.conn().await;
    eventually("no key, no subscription, no entry left", async || {
        let keys: Vec<String> = ask(&mut conn, "KEYS", &["*"]).await;
        let channels: Vec<String> = ask(&mut conn, "PUBSUB", &["CHANNELS"]).await;
        keys.iter().all(|key| key.starts_with("redisson_lock_token:"))
            && channels.is_empty()
            && locks.iter().all(|locks| locks.usage() == LockUsage::default())
    })
    .await;
}

/// What `future` gives, which has to be soon.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(output) => output,
        Err(_) => panic!("not within {PATIENCE:?}: {what}"),
    }
}

/// Send a raw command.
async fn ask<T: redis::FromRedisValue>(
    raw: &mut MultiplexedConnection,
    name: &str,
    args: &[&str],
) -> T {
    command(name, args).query_async(raw).await.expect(name)
}

/// A raw command.
fn command(name: &str, args: &[&str]) -> redis::Cmd {
    let mut command = redis::cmd(name);
    for arg in args {
        command.arg(arg);
    }
    command
}
