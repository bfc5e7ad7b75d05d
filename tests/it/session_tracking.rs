//! Client tracking of sessions: a session in an instance's memory needs no look-up until Redis reports that it ended, and is
//! looked up again soon wherever reports may be missing.

use std::time::{Duration, Instant};

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use testkit::proxy::Mode;
use testkit::redis_server::RedisServer;

use crate::metrics::page::Page;
use crate::support::api::{get, post};
use crate::support::stack::{SignedIn, Stack};
use crate::support::{PATIENCE, eventually};

/// For how long a session is used that is not tracked. One that is tracked is used for minutes, unless its end is reported.
const TRUST: Duration = Duration::from_millis(800);

async fn is_tracked(base: &str) -> bool {
    Page::of(base).await.get("seckill_sessions_tracked", &[]) == 1.0
}

/// Waits until Redis reports ended sessions to an instance.
pub async fn tracked(base: &str) {
    eventually("sessions are tracked", async || is_tracked(base).await).await;
}

async fn status(base: &str, user: &SignedIn) -> u16 {
    get(base, "/user/me").token(&user.token).send().await.status
}

/// Deletes a session as a Java node does.
async fn delete(redis: &mut MultiplexedConnection, user: &SignedIn) {
    let deleted: u64 = redis.del(format!("login:token:{}", user.token)).await.unwrap();
    assert_eq!(deleted, 1);
}

/// The longest time after which a request of the user began and was still answered with 200: a slow machine makes it
/// shorter.
async fn refused_after(base: &str, user: &SignedIn) -> Duration {
    let ended = Instant::now();
    let mut last = Duration::ZERO;
    loop {
        let asked = ended.elapsed();
        match status(base, user).await {
            200 => last = asked,
            401 => return last,
            // Redis does not answer.
            status => assert_eq!(status, 503),
        }
        assert!(asked < PATIENCE, "never refused");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// How many sessions an instance has looked up in Redis.
async fn lookups(base: &str) -> f64 {
    Page::of(base).await.get("seckill_session_lookups_total", &[("answered_by", "redis")])
}

#[tokio::test]
async fn a_session_that_ends_elsewhere_is_refused_within_a_second_and_a_busy_one_not_looked_up() {
    let mut stack = Stack::lab(2).await;
    let urls = stack.urls();
    let [one, two] = [&urls[0], &urls[1]];
    tracked(two).await;
    is_not_looked_up(two, &stack).await;
    let mut redis = stack.redis.conn().await;
    for round in 0..12 {
        let user = &stack.users(1).await[0];
        // Read a moment ago, so that it would be used for as long as possible.
        assert_eq!(status(two, user).await, 200);
        match round % 3 {
            0 => drop(post(one, "/user/logout").token(&user.token).send().await),
            1 => delete(&mut redis, user).await,
            _ => redis::cmd("FLUSHALL").exec_async(&mut redis).await.unwrap(),
        }
        let after = refused_after(two, user).await;
        assert!(after < Duration::from_secs(1), "signed in {after:?} after the end");
    }

    // Sessions are tracked again after Redis was restarted.
    let users = stack.users(2).await;
    assert_eq!(status(two, &users[0]).await, 200);
    let restart = async |redis: &mut RedisServer| {
        redis.kill();
        redis.restart().await;
    };
    restart(&mut stack.redis).await;
    delete(&mut stack.redis.conn().await, &users[0]).await;
    let after = refused_after(two, &users[0]).await;
    assert!(after < Duration::from_secs(1), "signed in {after:?} after the end");
    tracked(two).await;
    assert_eq!(status(two, &users[1]).await, 200);
    delete(&mut stack.redis.conn().await, &users[1]).await;
    refused_after(two, &users[1]).await;
}

/// A renewal is a change, which is reported as well: the session is then looked up once more. So it is where a PING was
/// late, as on a machine that is busy all the time.
async fn is_not_looked_up(base: &str, stack: &Stack) {
    let user = &stack.users(1).await[0];
    assert_eq!(status(base, user).await, 200);
    assert_eq!(lookups(base).await, 1.0);
    eventually("it is busy for long without a look-up", async || {
        let (before, began) = (lookups(base).await, Instant::now());
        while began.elapsed() < 2 * TRUST {
            assert_eq!(status(base, user).await, 200);
        }
        lookups(base).await == before
    })
    .await;
    let key = format!("login:token:{}", user.token);
    let mut redis = stack.redis.conn().await;
    let _: bool = redis.expire(&key, 60).await.unwrap();
    eventually("it is renewed", async || {
        assert_eq!(status(base, user).await, 200);
        redis.ttl::<_, i64>(&key).await.unwrap() > 60
    })
    .await;
}

/// Nothing is reset and nothing arrives: neither reports nor replies.
#[tokio::test]
async fn an_end_that_is_not_reported_takes_effect_within_a_second() {
    let stack = Stack::behind_proxies(&["--lab"]).await;
    let mut redis = stack.redis.conn().await;
    for user in stack.users(3).await {
        tracked(stack.url()).await;
        assert_eq!(status(stack.url(), &user).await, 200);
        stack.proxies.redis.set(Mode::HalfOpen);
        delete(&mut redis, &user).await;
        let after = refused_after(stack.url(), &user).await;
        assert!(after < Duration::from_secs(1), "signed in {after:?} after the end");
    }
}

#[tokio::test]
async fn without_the_right_to_track_sessions_are_looked_up_again_within_a_second() {
    let mut stack = Stack::start(0, &[]).await;
    let server = stack.redis.conn().await;
    let acl = async |rule: &str| {
        let mut command = redis::cmd("ACL");
        command.arg("SETUSER").arg("app");
        for part in rule.split_whitespace() {
            command.arg(part);
        }
        command.exec_async(&mut server.clone()).await.unwrap();
    };
    acl("on >secret ~* &* +@all -client|tracking").await;
    let mut env = stack.env();
    env[1].1 = format!("redis://app:secret@{}/", stack.redis.address());
    stack.add_instance_with(&["--lab"], &env).await;
    let (instance, base) = (&stack.instances[0], stack.url());
    let line = instance.wait_for_line("does not report").await;
    assert!(line.contains("WARN") && line.contains("CLIENT TRACKING"), "{line}");
    let user = &stack.users(1).await[0];
    let began = Instant::now();
    eventually("it is looked up again and again", async || {
        assert_eq!(status(base, user).await, 200);
        lookups(base).await == 3.0
    })
    .await;
    assert!(began.elapsed() >= 2 * TRUST, "3 look-ups in {:?}", began.elapsed());
    assert!(!is_tracked(base).await);
    delete(&mut stack.redis.conn().await, user).await;
    let after = refused_after(base, user).await;
    assert!(after < Duration::from_secs(1), "signed in {after:?} after the end");
    assert_eq!(instance.lines_with("does not report").len(), 1);

    acl("+client|tracking").await;
    tracked(base).await;
    instance.wait_for_line("reports ended sessions again").await;
}
