//! Users and passwords: a login that is refused, for a while or for good, and the rights that the
//! README lists for a cluster and for Sentinel.

use std::time::{Duration, Instant};

use redis::RedisConnectionInfo;
use redis::aio::MultiplexedConnection;
use redisson_lock::{Error, LockConfig, Locks, Server};

use super::channel_rights::{every_kind_as_app, rights};
use super::{connected, eventually, query, soon};
use testkit::redis_cluster::RedisCluster;
use testkit::redis_sentinel::{MASTER, RedisSentinel};
use testkit::redis_server::RedisServer;

const NAME: &str = "lock:order:1";

/// Sets a user on a server, with the password "secret" and these rights.
pub(super) async fn set_user(server: &RedisServer, name: &str, rights: &[&str]) {
    let rule = [&["SETUSER", name, "on", ">secret"][..], rights].concat();
    let _: () = query(&mut server.conn().await, "ACL", &rule).await;
}

fn login(server: &RedisServer, password: &str) -> redis::Client {
    redis::Client::open(format!("redis://app:{password}@{}/", server.address())).unwrap()
}

/// The rights that the README lists after `words`, in backticks.
fn more_rights(words: &str) -> Vec<&'static str> {
    let readme = include_str!("../../README.md");
    let found = readme
        .split_once(words)
        .and_then(|(_, rest)| rest.split('`').nth(1));
    found
        .unwrap_or_else(|| panic!("the README names the rights: {words}"))
        .split(' ')
        .collect()
}

/// How many connections a user has on a server.
pub(super) async fn connections_of(raw: &mut MultiplexedConnection, user: &str) -> usize {
    let list: String = query(raw, "CLIENT", &["LIST"]).await;
    list.lines()
        .filter(|line| line.contains(&format!(" user={user} ")))
        .count()
}

/// A call that waited for a better answer would never end.
#[tokio::test]
async fn a_refused_login_ends_every_call() {
    let server = RedisServer::start().await;
    set_user(&server, "app", &["~*", "&*", "+@all"]).await;
    let rejected = |error: &Error| matches!(error, Error::Rejected { cause, .. } if cause.to_string().contains("authentication failed"));
    let error = connected(login(&server, "wrong"), LockConfig::default())
        .await
        .unwrap_err();
    assert!(rejected(&error), "{error:?}");
    let locks = Locks::lazy(login(&server, "wrong"), LockConfig::default()).unwrap();
    let lock = locks.lock(NAME);
    let error = lock.try_acquire().await.unwrap_err();
    assert!(rejected(&error), "{error:?}");
    let error = soon("waiting ends", lock.acquire()).await.unwrap_err();
    assert!(rejected(&error), "{error:?}");
}

/// As when a password is changed, first on the server and then in the clients.
#[tokio::test]
async fn a_login_that_was_refused_is_tried_again() {
    let server = RedisServer::start().await;
    set_user(&server, "app", &["~*", "&*", "+@all"]).await;
    let mut raw = server.conn().await;
    let locks = connected(login(&server, "secret"), LockConfig::default())
        .await
        .unwrap();
    let lock = locks.lock(NAME);
    let held = lock.acquire().await.unwrap();
    let _: () = query(&mut raw, "ACL", &["SETUSER", "app", "resetpass", ">other"]).await;
    let _: i64 = query(&mut raw, "CLIENT", &["KILL", "USER", "app"]).await;
    eventually("the login is refused", async || {
        matches!(lock.is_locked().await, Err(Error::Rejected { .. }))
    })
    .await;
    // A release that is refused for this reason goes on in the background.
    fails_as!(held.release().await, Rejected);
    let _: () = query(&mut raw, "ACL", &["SETUSER", "app", ">secret"]).await;
    let again = Instant::now();
    eventually("the login is accepted", async || {
        lock.is_locked().await.is_ok()
    })
    .await;
    eventually("it is released", async || {
        lock.is_locked().await == Ok(false)
    })
    .await;
    assert!(
        again.elapsed() < Duration::from_secs(10),
        "{:?}",
        again.elapsed()
    );
}

#[tokio::test]
async fn the_rights_in_the_readme_are_enough_on_a_cluster() {
    let cluster = RedisCluster::start().await;
    let rights = [rights(), more_rights("On a cluster also")].concat();
    for node in &cluster.nodes {
        set_user(node, "app", &rights).await;
    }
    let _locks = every_kind_as_app(Server::cluster(cluster.urls()).unwrap()).await;
    let mut connections = 0;
    for node in &cluster.nodes {
        connections += connections_of(&mut node.conn().await, "app").await;
    }
    assert!(connections >= 2, "{connections}");
}

#[tokio::test]
async fn the_rights_in_the_readme_are_enough_with_sentinel() {
    let sentinel = RedisSentinel::start().await;
    for server in &sentinel.servers {
        set_user(
            server,
            "app",
            &[rights(), more_rights("with Sentinel")].concat(),
        )
        .await;
    }
    for server in &sentinel.sentinels {
        set_user(server, "watcher", &more_rights("users of the sentinels")).await;
    }
    let sentinels = sentinel
        .sentinels
        .iter()
        .map(|s| format!("redis://watcher:secret@{}/", s.address()));
    let server = Server::sentinel(sentinels, MASTER, RedisConnectionInfo::default()).unwrap();
    let _locks = every_kind_as_app(server).await;
    let mut master = sentinel.servers[0].conn().await;
    assert!(connections_of(&mut master, "app").await >= 2);
    let mut first_sentinel = sentinel.sentinels[0].conn().await;
    assert!(connections_of(&mut first_sentinel, "watcher").await >= 1);
}

#[test]
fn without_a_runtime_nothing_connects() {
    let client = redis::Client::open("redis://127.0.0.1:1/").unwrap();
    let error = Locks::lazy(client, LockConfig::default()).unwrap_err();
    assert!(
        matches!(error, Error::Rejected { .. }) && !error.is_retryable(),
        "{error:?}"
    );
}
