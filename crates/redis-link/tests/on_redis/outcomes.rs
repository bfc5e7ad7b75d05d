//! What is known of a command that failed, and that it was sent once: on one server behind a proxy.

use std::time::Instant;

use redis_link::{Outcome, Redis, Server};
use testkit::proxy::{Mode, Proxy};
use testkit::raw::{connections, query};
use testkit::redis_server::RedisServer;

use super::{LATE, LIMIT, PATIENT, assert_outcome, count, eventually};

#[tokio::test]
async fn a_command_whose_reply_is_lost_is_not_sent_again() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let redis = Redis::new(proxy.redis(), PATIENT, PATIENT).unwrap();
    assert_eq!(count(&redis, "n").await.unwrap(), 1);
    proxy.set(Mode::LoseReply);
    assert_outcome(count(&redis, "n").await, Outcome::Unknown);
    assert_eq!(count(&redis, "n").await.unwrap(), 3, "it was executed");
    proxy.set(Mode::HoldRequest);
    assert_outcome(count(&redis, "n").await, Outcome::Unknown);
    assert_eq!(
        count(&redis, "n").await.unwrap(),
        4,
        "it is still on its way"
    );
    proxy.pass_held().await;
    let mut raw = server.conn().await;
    eventually("it arrives", async || {
        query::<i64>(&mut raw, "GET", &["n"]).await == 5
    })
    .await;
}

#[tokio::test]
async fn each_call_ends_within_its_limit() {
    let server = RedisServer::start().await;
    let redis = Redis::new(server.client(), LIMIT, LIMIT).unwrap();
    let slower = redis.with_command_timeout(LIMIT * 4);
    for redis in [&redis, &slower] {
        eventually("it is connected", async || count(redis, "n").await.is_ok()).await;
    }
    server.pause();
    // Over a connection, over the connection of the other limit, and without one.
    let new = Redis::new(server.client(), LIMIT, LIMIT).unwrap();
    for (redis, limit) in [(redis, LIMIT), (slower, LIMIT * 4), (new, LIMIT)] {
        let started = Instant::now();
        assert_outcome(count(&redis, "n").await, Outcome::Unknown);
        let took = started.elapsed();
        assert!(took >= limit && took < limit * 2 + LATE, "{took:?}");
    }
    server.resume();
}

#[tokio::test]
async fn nothing_was_executed_where_nobody_listens() {
    let mut server = RedisServer::start().await;
    let redis = Redis::new(server.client(), PATIENT, PATIENT).unwrap();
    count(&redis, "n").await.unwrap();
    server.kill();
    let mut outcomes = Vec::new();
    for _ in 0..5 {
        outcomes.push(Outcome::of(&count(&redis, "n").await.unwrap_err()));
    }
    // Only the first outcome may be unknown, if the end of the connection was not noticed before.
    assert_eq!(outcomes[1..], [Outcome::NotExecuted; 4]);
    server.restart().await;
    assert_eq!(count(&redis, "n").await.unwrap(), 1);
}

/// A middlebox forgot the connection: it acknowledges what is sent, and nothing comes back.
#[tokio::test]
async fn a_half_open_connection_is_replaced() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let redis = Redis::new(proxy.redis(), PATIENT, LIMIT).unwrap();
    for _ in 0..2 {
        // A busy machine may need longer than the limit, which is there for the half-open connection.
        eventually("it works", async || count(&redis, "n").await.is_ok()).await;
        proxy.set(Mode::HalfOpen);
        eventually("it is replaced", async || count(&redis, "n").await.is_ok()).await;
    }
}

/// A login is refused while its password is changed on the server first. It is not tried with every command: logins
/// are logged, and cost the server a hash.
#[tokio::test]
async fn a_refused_login_is_tried_again_now_and_then() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let user = ["SETUSER", "app", "on", ">other", "~*", "+@all"];
    let _: () = query(&mut raw, "ACL", &user).await;
    let app = Server::from(server.client())
        .with_login(Some("app"), "secret")
        .unwrap();
    let redis = Redis::new(app, PATIENT, PATIENT).unwrap();
    assert_outcome(count(&redis, "n").await, Outcome::LoginRefused);
    let before = connections(&mut raw).await;
    for _ in 0..20 {
        assert_outcome(count(&redis, "n").await, Outcome::LoginRefused);
    }
    assert_eq!(connections(&mut raw).await, before);
    let _: () = query(&mut raw, "ACL", &["SETUSER", "app", ">secret"]).await;
    eventually("it is accepted", async || count(&redis, "n").await.is_ok()).await;
}
