//! Integration tests of the locks on throw-away Redis servers: wire format, waiting,
//! clean-up, and errors when Redis fails.

#![allow(clippy::unwrap_used)]
#![allow(dead_code)]

/// Fails unless the call failed with this kind of error.
macro_rules! fails_as {
    ($result:expr, $error:ident) => {
        match $result {
            Err(Error::$error { .. }) => {}
            unexpected => panic!("not {}: {:?}", stringify!($error), unexpected.map(drop)),
        }
    };
}

mod all_kinds;
mod call_site;
mod cancellation;
mod channel_rights;
mod cluster;
mod declared_keys;
mod examples;
mod fair;
mod fenced;
mod history;
mod hung_shard;
mod late_acquire;
mod late_release;
mod lost_locks;
mod lost_replies;
mod multi;
mod outage;
mod polling;
mod read_leases;
mod read_write;
mod sentinel;
mod setnx;
mod slow;
mod users;
mod waiting;
mod waiting_limits;
mod waiting_now;
mod wire_format;

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::join_all;
use redis::aio::{MultiplexedConnection, PubSubStream};
use redisson_lock::kind::LockKind;
use redisson_lock::{Guard, Lock, LockConfig, LockStats, LockUsage, Locks, Server};
use tokio::task::JoinHandle;

use testkit::proxy::{Mode, Proxy};
use testkit::raw::{calls_of, query};
use testkit::redis_server::RedisServer;

/// The lease of most tests: short, so that expiry and renewal happen during a test, and long enough
/// that a busy machine does not lose a lock by accident.
const LEASE: Duration = Duration::from_secs(2);

/// Time limit for a condition to become true.
const TIMEOUT: Duration = Duration::from_secs(20);

/// So long that no timer ends within [`TIMEOUT`]: a waiter that acquires, or a holder that loses its lock,
/// was told so.
const LONG_LEASE: Duration = Duration::from_secs(120);

/// No test takes so long: what still waits then fails with [`Error::Closed`](redisson_lock::Error::Closed).
const LONGEST_TEST: Duration = Duration::from_secs(120);

/// Locks on a server of a test. No call waits for longer than a test may take, so that a lock which nobody releases fails
/// the test where it waits, and does not hang all of them.
async fn connected(
    server: impl Into<Server>,
    config: LockConfig,
) -> Result<Locks, redisson_lock::Error> {
    let locks = Locks::connect(server, config).await?;
    let waiting = locks.clone();
    tokio::spawn(async move {
        tokio::time::sleep(LONGEST_TEST).await;
        eprintln!("the test takes longer than {LONGEST_TEST:?}: its waiting calls end");
        waiting.shutdown().await;
    });
    Ok(locks)
}

/// Starts a server. Returns it with a connection to it, and with the locks of `N` processes.
async fn start<const N: usize>(
    lease: Duration,
) -> (RedisServer, MultiplexedConnection, [Locks; N]) {
    start_with(LockConfig::default().with_lease(lease)).await
}

/// The same with other settings.
async fn start_with<const N: usize>(
    config: LockConfig,
) -> (RedisServer, MultiplexedConnection, [Locks; N]) {
    let server = RedisServer::start().await;
    let raw = server.conn().await;
    let processes = join_all((0..N).map(|_| connected(server.client(), config.clone()))).await;
    let processes: Result<Vec<Locks>, _> = processes.into_iter().collect();
    (
        server,
        raw,
        processes.expect("connect").try_into().expect("so many"),
    )
}

/// The same with a proxy between the locks and the server.
async fn start_behind_proxy(config: LockConfig) -> (RedisServer, Proxy, Locks) {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let locks = connected(proxy.redis(), config).await.unwrap();
    (server, proxy, locks)
}

/// Locks on `server`.
async fn locks(server: &RedisServer, lease: Duration) -> Locks {
    let config = LockConfig::default().with_lease(lease);
    connected(server.client(), config).await.expect("connect")
}

/// The messages on the channels of this pattern, from now on.
async fn messages(server: &RedisServer, channels: &str) -> PubSubStream {
    let mut pubsub = server.client().get_async_pubsub().await.unwrap();
    pubsub.psubscribe(channels).await.unwrap();
    pubsub.into_on_message()
}

/// The text of the next message.
async fn next_message(messages: &mut PubSubStream) -> String {
    let message = soon("a message", messages.next())
        .await
        .expect("an open connection");
    String::from_utf8(message.get_payload_bytes().to_vec()).unwrap()
}

/// The addresses of these servers, as the URL of a cluster or of sentinels has them.
fn addresses(servers: &[RedisServer]) -> String {
    servers
        .iter()
        .map(RedisServer::address)
        .collect::<Vec<_>>()
        .join(",")
}

/// Starts a call that waits for the lock.
fn wait_for<K: LockKind>(lock: &Lock<K>) -> JoinHandle<Guard<K>> {
    let lock = lock.clone();
    tokio::spawn(async move { lock.acquire().await.unwrap() })
}

/// Waits until `condition` holds.
async fn eventually(what: &str, condition: impl AsyncFnMut() -> bool) {
    testkit::wait::eventually(what, TIMEOUT, condition).await;
}

/// Waits until a hold has been renewed, by how long it is valid for: time alone does not postpone its end.
async fn renewed(valid_for: impl Fn() -> Duration) {
    let valid = valid_for();
    let end = Instant::now() + valid;
    eventually("it is renewed", async || {
        let now = Instant::now();
        let valid = valid_for();
        assert!(!valid.is_zero(), "its lease has ended");
        now + valid > end
    })
    .await;
}

/// Whether nothing is left on a server: no subscription, and no key but those that outlive their lock,
/// which are the counters of fenced locks and, for two minutes, the generations that were raised.
async fn is_clean(raw: &mut MultiplexedConnection) -> bool {
    let mut keys: Vec<String> = query(raw, "KEYS", &["*"]).await;
    let outlive = ["redisson_lock_token:", "redisson_unlock_latch:"];
    keys.retain(|key| !outlive.iter().any(|start| key.starts_with(start)));
    let mut channels: Vec<String> = query(raw, "PUBSUB", &["CHANNELS"]).await;
    // Sentinels are subscribed to one of their own.
    channels.retain(|channel| !channel.starts_with("__sentinel__"));
    keys.is_empty() && channels.is_empty()
}

/// Waits until nothing is left on the server, and no entry in the processes.
async fn nothing_left(server: &RedisServer, locks: &[&Locks]) {
    let mut raw = server.conn().await;
    eventually("no key, no subscription, no entry left", async || {
        locks
            .iter()
            .all(|locks| locks.usage() == LockUsage::default())
            && is_clean(&mut raw).await
    })
    .await;
}

/// The output of `future`; fails after [`TIMEOUT`].
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(TIMEOUT, future).await {
        Ok(output) => output,
        Err(_) => panic!("not within {TIMEOUT:?}: {what}"),
    }
}

/// Runs `call` while the proxy loses the next reply; fails if no reply was lost.
async fn losing_reply<T>(proxy: &Proxy, call: impl Future<Output = T>) -> T {
    proxy.set(Mode::LoseReply);
    let output = call.await;
    assert_eq!(proxy.mode(), Mode::Forward, "no reply was lost");
    output
}

/// How many connections are subscribed to a channel.
async fn subscribers(raw: &mut MultiplexedConnection, channel: &str) -> i64 {
    query::<(String, i64)>(raw, "PUBSUB", &["NUMSUB", channel])
        .await
        .1
}

/// The statistics of one kind of lock.
fn stats_of(locks: &Locks, kind: &str) -> LockStats {
    locks
        .stats()
        .into_iter()
        .find(|stats| stats.kind == kind)
        .expect("a kind")
}
