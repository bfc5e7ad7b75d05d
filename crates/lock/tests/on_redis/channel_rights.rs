//! ACL users without the right to some or all channels, as new users of Redis 7 are.

use std::time::Duration;

use redisson_lock::kind::LockKind;
use redisson_lock::{ChannelRefusals, Lock, LockConfig, Locks, Server};

use super::users::{connections_of, set_user};
use super::{
    LEASE, LONG_LEASE, calls_of, connected, eventually, locks, renewed, soon, subscribers, wait_for,
};
use testkit::raw::connections;
use testkit::redis_server::RedisServer;

const NAME: &str = "lock:order:1";
const CHANNEL: &str = "redisson_lock__channel:{lock:order:1}";
const OTHER: &str = "lock:order:2";

/// Locks of a user with every right but for channels, of which it may use only `channels`.
async fn user(server: &RedisServer, name: &str, channels: &[&str]) -> Locks {
    set_user(
        server,
        name,
        &[&["~*", "+@all", "resetchannels"][..], channels].concat(),
    )
    .await;
    let url = format!("redis://{name}:secret@{}/", server.address());
    let client = redis::Client::open(url).unwrap();
    let config = LockConfig::default().with_poll_interval(Duration::from_millis(50));
    connected(client, config).await.unwrap()
}

#[tokio::test]
async fn waiters_poll_where_channels_are_forbidden() {
    let server = RedisServer::start().await;
    let holder_locks = locks(&server, LONG_LEASE).await;
    let app_locks = user(&server, "app", &[]).await;
    let guard = holder_locks.lock(NAME).acquire().await.unwrap();
    let waiting = wait_for(&app_locks.lock(NAME));
    eventually("it is refused", async || {
        app_locks.refusals().subscriptions >= 1
    })
    .await;
    guard.release().await.unwrap();
    let guard = soon("it acquires the lock", waiting).await.unwrap();
    assert_eq!(app_locks.refusals().notifications, 0);
    // Nobody hears of this release, which is counted.
    guard.release().await.unwrap();
    assert_eq!(app_locks.refusals().notifications, 1);
    assert_eq!(holder_locks.refusals(), ChannelRefusals::default());
}

/// The rights that the README lists for a user on one server.
pub(super) fn rights() -> Vec<&'static str> {
    let readme = include_str!("../../README.md");
    let rule = readme
        .lines()
        .find_map(|line| line.strip_prefix("ACL SETUSER app on >secret "));
    rule.expect("a rule in the README")
        .split_whitespace()
        .collect()
}

#[tokio::test]
async fn the_rights_in_the_readme_are_enough() {
    let server = RedisServer::start().await;
    set_user(&server, "app", &rights()).await;
    let _locks = every_kind_as_app(Server::from(server.client())).await;
    assert!(connections_of(&mut server.conn().await, "app").await >= 1);
}

/// Locks of the user `app`. Checks that every kind of lock works, and that the user is refused nothing.
pub(super) async fn every_kind_as_app(server: Server) -> Locks {
    let app = server.with_login(Some("app"), "secret").unwrap();
    // Rights are tested here, not times: a busy machine renews this lease, too.
    let locks = connected(app, LockConfig::default().with_lease(3 * LEASE))
        .await
        .unwrap();
    every_kind(&locks).await;
    assert_eq!(locks.refusals(), ChannelRefusals::default());
    locks
}

/// Acquires, renews, awaits, queries and releases with every kind of lock.
pub(super) async fn every_kind(locks: &Locks) {
    let read_write = locks.read_write("read-write");
    every_call(&locks.lock("reentrant")).await;
    every_call(&locks.fenced("fenced")).await;
    every_call(&locks.fair("fair")).await;
    every_call(read_write.read()).await;
    every_call(read_write.write()).await;
    let setnx = locks.setnx("setnx", Duration::from_secs(60));
    setnx
        .try_acquire()
        .await
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();
}

async fn every_call<K: LockKind>(lock: &Lock<K>) {
    let held = lock.acquire().await.unwrap();
    let waiting = wait_for(lock);
    renewed(|| held.valid_for()).await;
    assert!(lock.is_locked().await.unwrap() && lock.remaining().await.unwrap().is_some());
    assert_eq!(lock.hold_count(held.owner()).await.unwrap(), 1);
    held.release().await.unwrap();
    soon("the waiter acquires", waiting)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let _held = lock.acquire().await.unwrap();
    assert!(lock.force_unlock().await.unwrap());
}

#[tokio::test]
async fn a_forbidden_channel_does_not_disturb_the_others() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let holder_locks = locks(&server, LONG_LEASE).await;
    let app_locks = user(&server, "app", &[&format!("&{CHANNEL}")]).await;
    let guard = holder_locks.lock(NAME).acquire().await.unwrap();
    let forbidden = holder_locks.lock(OTHER).acquire().await.unwrap();
    let mut waits = Vec::new();
    for name in [OTHER, NAME] {
        waits.push(wait_for(&app_locks.lock(name)));
        eventually("it waits", async || {
            app_locks.usage().channels == waits.len()
        })
        .await;
    }
    eventually("it is subscribed", async || {
        subscribers(&mut raw, CHANNEL).await == 1
    })
    .await;
    let before = connections(&mut raw).await;
    let polls = calls_of(&mut raw, "evalsha").await;
    eventually("the other waiter polls", async || {
        assert_eq!(
            subscribers(&mut raw, CHANNEL).await,
            1,
            "the subscription was given up"
        );
        calls_of(&mut raw, "evalsha").await >= polls + 20
    })
    .await;
    assert_eq!(connections(&mut raw).await, before, "it connected again");
    guard.release().await.unwrap();
    forbidden.release().await.unwrap();
    for wait in waits {
        soon("it acquires the lock", wait)
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
}
