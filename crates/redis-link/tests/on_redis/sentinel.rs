//! A master monitored by Redis Sentinel: discovery through any sentinel, failover.

use std::time::Instant;

use redis::RedisConnectionInfo;
use redis_link::{Outcome, Redis, Server};
use testkit::raw::query;
use testkit::redis_sentinel::{MASTER, RedisSentinel};
use testkit::redis_server::{RedisServer, Role};

use super::{
    LATE, LIMIT, PATIENT, TIMEOUT, assert_outcome, behind, count, eventually, is_on, soon,
};

#[tokio::test]
async fn commands_follow_a_failover_from_a_killed_master() {
    let mut sentinel = RedisSentinel::start().await;
    let (redis, _watch) = behind(sentinel.urls(), MASTER, LIMIT);
    eventually("the master is known", async || {
        count(&redis, "n").await.is_ok()
    })
    .await;
    let moved = redis.moved("n");
    sentinel.servers[0].kill();
    let killed = Instant::now();
    let mut failed = 0;
    loop {
        assert!(killed.elapsed() < TIMEOUT, "no new master was found");
        let started = Instant::now();
        if count(&redis, "n").await.is_ok() {
            break;
        }
        failed += 1;
        // Twice the limit for finding the master and connecting to it, once for the command.
        assert!(
            started.elapsed() < LIMIT * 3 + LATE,
            "{:?}",
            started.elapsed()
        );
        tokio::time::sleep(LIMIT / 20).await;
    }
    assert!(failed > 0, "no command failed");
    let mut successor = sentinel.servers[1].conn().await;
    eventually("commands reach it", async || {
        is_on(&redis, &mut successor).await
    })
    .await;
    soon("connections of one's own move", moved).await;
}

/// After a manual failover the sentinels demote the old master only after some eight seconds: until
/// then it answers as a master, and what it grants is lost when it becomes a replica.
#[tokio::test]
async fn a_replaced_master_is_left_before_it_is_demoted() {
    let sentinel = RedisSentinel::start().await;
    let (redis, _watch) = behind(sentinel.urls(), MASTER, PATIENT);
    count(&redis, "n").await.unwrap();
    sentinel.ask_for_failover().await;
    let mut any_sentinel = sentinel.sentinels[0].conn().await;
    let new_master = ("127.0.0.1".to_owned(), sentinel.servers[1].port());
    eventually("the sentinels have switched", async || {
        let address: (String, u16) = query(
            &mut any_sentinel,
            "SENTINEL",
            &["GET-MASTER-ADDR-BY-NAME", MASTER],
        )
        .await;
        address == new_master
    })
    .await;
    let switched = Instant::now();
    let mut successor = sentinel.servers[1].conn().await;
    eventually("the new master is used", async || {
        is_on(&redis, &mut successor).await
    })
    .await;
    assert!(switched.elapsed() < LATE * 2, "{:?}", switched.elapsed());
}

#[tokio::test]
async fn one_sentinel_that_answers_is_enough() {
    let mut sentinel = RedisSentinel::start().await;
    sentinel.sentinels[0].kill();
    sentinel.sentinels[1].pause();
    let (redis, _watch) = behind(sentinel.urls(), MASTER, PATIENT);
    let started = Instant::now();
    count(&redis, "n").await.unwrap();
    assert!(started.elapsed() < PATIENT, "it waited for one that hangs");
    sentinel.sentinels[1].resume();
}

/// The sentinel asks for a login, and its master does not. The sentinel's user has only the rights that users of this crate
/// are told to give it.
#[tokio::test]
async fn a_sentinel_that_asks_for_a_login_gets_its_own() {
    let master = RedisServer::start().await;
    let monitor = format!("sentinel monitor {MASTER} 127.0.0.1 {} 1\n", master.port());
    let sentinel = RedisServer::start_as(Role::Sentinel(monitor)).await;
    let mut raw = sentinel.conn().await;
    let watcher = "SETUSER watcher on >p/w +sentinel|master +sentinel|get-master-addr-by-name";
    for user in [watcher, "SETUSER default off"] {
        let words: Vec<&str> = user.split(' ').collect();
        let () = query(&mut raw, "ACL", &words).await;
    }
    let count_behind = async |login: &str| {
        let url = format!("redis-sentinel://{}/{MASTER}{login}", sentinel.address());
        let server = Server::from_url(&url).unwrap();
        let redis = Redis::new(server, PATIENT, PATIENT).unwrap();
        soon("an answer", count(&redis, "n")).await
    };
    count_behind("?sentinel_user=watcher&sentinel_password=p%2Fw")
        .await
        .unwrap();
    for login in [
        "",
        "?sentinel_password=p%2Fw",
        "?sentinel_user=watcher&sentinel_password=x",
    ] {
        assert_outcome(count_behind(login).await, Outcome::NotExecuted);
    }
}

#[tokio::test]
async fn a_command_for_an_unknown_master_is_not_executed() {
    let sentinel = RedisSentinel::start().await;
    let (redis, _watch) = behind(sentinel.urls(), "unknown", PATIENT);
    assert_outcome(
        soon("an answer", count(&redis, "n")).await,
        Outcome::NotExecuted,
    );
    let server = Server::sentinel(Vec::<String>::new(), MASTER, RedisConnectionInfo::default());
    assert!(server.is_err(), "no sentinel");
}
