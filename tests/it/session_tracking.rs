//! Client tracking of sessions: a session in an instance's memory needs no look-up until Redis reports that it ended, and is
//! looked up again soon wherever reports may be missing.

use std::time::{Duration, Instant};

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use seckill::{connection, keys::KeyStyle, session::SharedSessions};
use testkit::{proxy::Mode, raw::query, redis_server::RedisServer};

use crate::support::api::{get, metric, metric_is, post};
use crate::support::stack::{SignedIn, Stack};
use crate::support::{PATIENCE, acl, eventually};

/// How long an instance uses a session that is not tracked. One that is tracked is used for minutes, unless its end is reported.
const TRUST: Duration = Duration::from_millis(800);

/// Waits until Redis reports ended sessions to an instance.
pub async fn tracked(base: &str) {
    metric_is(base, "seckill_sessions_tracked", 1).await;
}

async fn status(base: &str, user: &SignedIn) -> u16 {
    get(base, "/user/me").token(&user.token).send().await.status
}

/// Deletes a session as a Java node does.
async fn delete(redis: &mut MultiplexedConnection, user: &SignedIn) {
    let deleted: u64 = redis
        .del(format!("login:token:{}", user.token))
        .await
        .unwrap();
    assert_eq!(deleted, 1);
}

/// Waits until the user's requests are refused. A request that begins a second or more after the session's end must not be
/// answered with 200. On a slow machine such an answer is only rarer.
async fn refused_in_time(base: &str, user: &SignedIn) {
    let ended = Instant::now();
    eventually("the session is refused", async || {
        let since_end = ended.elapsed();
        let status = status(base, user).await;
        assert!(
            status != 200 || since_end < Duration::from_secs(1),
            "signed in {since_end:?} after the end"
        );
        // 503: Redis does not answer.
        assert!([200, 401, 503].contains(&status), "{status}");
        status == 401
    })
    .await;
}

/// How many sessions an instance has looked up in Redis.
pub async fn lookups(base: &str) -> u64 {
    metric(base, "seckill_session_lookups_total{answered_by=\"redis\"}").await
}

#[tokio::test]
async fn a_session_that_ends_elsewhere_is_refused_within_a_second_and_a_busy_one_not_looked_up() {
    let mut stack = Stack::lab(2).await;
    let urls = stack.urls();
    let [first_url, second_url] = [&urls[0], &urls[1]];
    tracked(second_url).await;
    assert_not_looked_up(second_url, &stack).await;
    let mut redis = stack.redis.conn().await;
    for round in 0..12 {
        let user = &stack.users(1).await[0];
        // The instance has just read it, and so would use it for as long as possible.
        assert_eq!(status(second_url, user).await, 200);
        match round % 3 {
            0 => drop(
                post(first_url, "/user/logout")
                    .token(&user.token)
                    .send()
                    .await,
            ),
            1 => delete(&mut redis, user).await,
            _ => redis::cmd("FLUSHALL").exec_async(&mut redis).await.unwrap(),
        }
        refused_in_time(second_url, user).await;
    }

    // Sessions are tracked again after Redis was restarted.
    let users = stack.users(2).await;
    assert_eq!(status(second_url, &users[0]).await, 200);
    stack.redis.kill();
    stack.redis.restart().await;
    delete(&mut stack.redis.conn().await, &users[0]).await;
    refused_in_time(second_url, &users[0]).await;
    tracked(second_url).await;
    assert_eq!(status(second_url, &users[1]).await, 200);
    delete(&mut stack.redis.conn().await, &users[1]).await;
    refused_in_time(second_url, &users[1]).await;
}

/// A look-up now and then is allowed: after a late PING, as on a busy machine, or after the report of the session's renewal.
async fn assert_not_looked_up(base: &str, stack: &Stack) {
    let user = &stack.users(1).await[0];
    assert_eq!(status(base, user).await, 200);
    assert_eq!(lookups(base).await, 1);
    eventually("it is busy for long without a look-up", async || {
        let before = lookups(base).await;
        let began = Instant::now();
        while began.elapsed() < 2 * TRUST {
            assert_eq!(status(base, user).await, 200);
        }
        lookups(base).await == before
    })
    .await;
}

/// The connection is not reset, but nothing arrives on it, neither reports nor replies.
#[tokio::test]
async fn an_end_that_is_not_reported_takes_effect_within_a_second() {
    let stack = Stack::behind_proxies(&["--lab"]).await;
    let mut redis = stack.redis.conn().await;
    for user in stack.users(3).await {
        tracked(stack.url()).await;
        assert_eq!(status(stack.url(), &user).await, 200);
        stack.proxies.redis.set(Mode::HalfOpen);
        delete(&mut redis, &user).await;
        refused_in_time(stack.url(), &user).await;
    }
}

/// What a slow PING proves is old when its answer arrives, and no session is used by it.
#[tokio::test]
async fn a_ping_counts_from_when_it_was_sent() {
    let stack = Stack::patient_behind_proxies(&[]).await;
    let base = stack.url();
    let redis = &stack.proxies.redis;
    tracked(base).await;
    redis.set(Mode::DelayRequests("PING", TRUST + TRUST / 8));
    metric_is(base, "seckill_sessions_tracked", 0).await;
    redis.count("PING");
    eventually("three PINGs were answered", async || {
        // Each is sent once the one before was answered.
        let pings = redis.counted("PING");
        assert_eq!(metric(base, "seckill_sessions_tracked").await, 0);
        pings > 3
    })
    .await;
}

/// A master that was replaced goes on answering, but the end of a session does not reach it any more.
#[tokio::test]
async fn a_server_that_commands_have_left_confirms_no_session() {
    let stack = Stack::behind_proxies(&["--lab"]).await;
    let base = stack.url();
    let user = &stack.users(1).await[0];
    let session = format!("login:token:{}", user.token);
    tracked(base).await;
    assert_eq!(status(base, user).await, 200);
    let mut master = stack.redis.conn().await;
    let successor = RedisServer::start().await;
    let mut new_master = successor.conn().await;
    let port = stack.redis.port().to_string();
    query::<()>(&mut new_master, "REPLICAOF", &["127.0.0.1", &port]).await;
    eventually("the successor has the session", async || {
        new_master.exists(&session).await == Ok(true)
    })
    .await;
    query::<()>(&mut new_master, "REPLICAOF", &["NO", "ONE"]).await;
    stack.proxies.redis.lead_to(successor.address());
    // It takes no writes from now on, and nobody replicates to it.
    query::<()>(&mut master, "REPLICAOF", &["127.0.0.1", "1"]).await;
    eventually("commands go to the successor", async || {
        post(base, "/user/code?phone=13900000001").send().await;
        new_master.exists("login:code:13900000001").await == Ok(true)
    })
    .await;
    let deleted: u64 = new_master.del(&session).await.unwrap();
    assert_eq!(deleted, 1);
    eventually("the session is refused", async || {
        status(base, user).await == 401
    })
    .await;
}

#[tokio::test]
async fn without_the_right_to_track_sessions_are_looked_up_again_within_a_second() {
    let mut stack = Stack::start(0, &[]).await;
    acl(&stack.redis, "app", "~* &* +@all -client|tracking").await;
    let mut env = stack.env();
    env[1].1 = format!("redis://app:secret@{}/", stack.redis.address());
    stack.add_instance_with(&["--lab"], &env).await;
    let instance = &stack.instances[0];
    let base = stack.url();
    let line = instance.wait_for_line("does not report").await;
    assert!(
        line.contains("WARN") && line.contains("CLIENT TRACKING"),
        "{line}"
    );
    let user = &stack.users(1).await[0];
    let began = Instant::now();
    eventually("it is looked up again and again", async || {
        assert_eq!(status(base, user).await, 200);
        lookups(base).await == 3
    })
    .await;
    assert!(
        began.elapsed() >= 2 * TRUST,
        "3 look-ups in {:?}",
        began.elapsed()
    );
    assert_eq!(metric(base, "seckill_sessions_tracked").await, 0);
    delete(&mut stack.redis.conn().await, user).await;
    refused_in_time(base, user).await;
    // A session that ends at this instance is refused at once.
    let user = &stack.users(1).await[0];
    assert_eq!(status(base, user).await, 200);
    let logout = post(base, "/user/logout").token(&user.token);
    logout.send().await.data();
    assert_eq!(status(base, user).await, 401);
    assert_eq!(instance.lines_with("does not report").len(), 1);

    acl(&stack.redis, "app", "+client|tracking").await;
    tracked(base).await;
    instance.wait_for_line("reports ended sessions again").await;
}

#[tokio::test]
async fn a_shutdown_ends_the_tracking_of_sessions() {
    let server = RedisServer::start().await;
    let address = connection::redis::server(&server.url().into(), None, None).unwrap();
    let nodes = connection::redis::connect(address, PATIENCE).await.unwrap();
    let sessions = SharedSessions::new(nodes.commands(), KeyStyle::Default);
    sessions.track(nodes);
    eventually("sessions are tracked", async || sessions.stats().tracked).await;
    sessions.shutdown().await;
    eventually("they are no more", async || !sessions.stats().tracked).await;
}

/// If the Redis user may not use the key of a session, this fails no other session that is looked up in the same round trip. If
/// it may not extend a session's time to live, the session is still valid.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_cannot_be_renewed_fails_no_other() {
    let mut stack = Stack::start(0, &[]).await;
    acl(&stack.redis, "app", "~* &* +@all").await;
    let mut env = stack.env();
    env[1].1 = format!("redis://app:secret@{}/", stack.redis.address());
    stack.add_instance_with(&[], &env).await;
    let users = stack.users(60).await;
    let mut redis = stack.redis.conn().await;
    for user in &users {
        let key = format!("login:token:{}", user.token);
        redis.expire::<_, ()>(key, 1000).await.unwrap();
    }
    // Of sessions, only those whose token ends with a letter.
    let rights = "resetkeys ~login:token:*[a-f] ~login:code:* ~lock:* ~[a-km-z]* ~{*";
    acl(&stack.redis, "app", rights).await;
    let requests = users.iter().map(|user| status(stack.url(), user));
    let statuses = futures_util::future::join_all(requests).await;
    for (user, status) in users.iter().zip(&statuses) {
        let is_allowed = user
            .token
            .ends_with(|last: char| last.is_ascii_alphabetic());
        let expected = if is_allowed { 200 } else { 503 };
        assert_eq!(*status, expected, "{}", user.token);
        let key = format!("login:token:{}", user.token);
        let ttl: i64 = redis.ttl(key).await.unwrap();
        assert_eq!(ttl > 1000, is_allowed, "{}", user.token);
    }
    let found = statuses.iter().filter(|status| **status == 200).count();
    assert!((1..users.len()).contains(&found), "{found}");

    // Without EXPIRE no session is renewed, and all are valid.
    acl(&stack.redis, "app", "~* -expire").await;
    let requests = users.iter().map(|user| status(stack.url(), user));
    let statuses = futures_util::future::join_all(requests).await;
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
    let line = "a session is not renewed";
    stack.instances[0].wait_for_line(line).await;

    // A server that is no longer the master is not believed: it refuses the renewal of a session that is due, and so the request
    // fails.
    acl(&stack.redis, "app", "+expire").await;
    let user = &stack.users(1).await[0];
    let key = format!("login:token:{}", user.token);
    redis.expire::<_, ()>(key, 1000).await.unwrap();
    let _: () = query(&mut redis, "REPLICAOF", &["127.0.0.1", "1"]).await;
    assert_eq!(status(stack.url(), user).await, 503);
}
