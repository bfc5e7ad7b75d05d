//! Client tracking of sessions: a session in an instance's memory needs no look-up until Redis reports that it ended, and is
//! looked up again soon wherever reports may be missing.

use std::time::{Duration, Instant};

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use testkit::proxy::Mode;
use testkit::redis_server::RedisServer;
use testkit::wait::eventually;

use crate::metrics::page::Page;
use crate::support::api::{get, post};
use crate::support::instance::Instance;
use crate::support::stack::{SignedIn, Stack};

const TIMEOUT: Duration = Duration::from_secs(20);

/// How soon a reported end takes effect, on a very busy machine; unreported it takes 0.8 s, where it was just read.
const SOON: Duration = Duration::from_millis(500);

async fn is_tracked(base: &str) -> bool {
    Page::of(base).await.get("seckill_sessions_tracked", &[]) == 1.0
}

/// Waits until Redis reports ended sessions to an instance.
pub async fn tracked(base: &str) {
    eventually("sessions are tracked", TIMEOUT, async || is_tracked(base).await).await;
}

async fn status(base: &str, user: &SignedIn) -> u16 {
    get(base, "/user/me").token(&user.token).send().await.status
}

/// Deletes a session as a Java node does.
async fn delete(redis: &mut MultiplexedConnection, user: &SignedIn) {
    let deleted: u64 = redis.del(format!("login:token:{}", user.token)).await.unwrap();
    assert_eq!(deleted, 1);
}

/// The longest time after which a request of the user began and was still answered with 200.
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
        assert!(asked < TIMEOUT, "never refused");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// How many sessions an instance looked up in Redis for a user who was busy for three seconds.
async fn lookups(base: &str, user: &SignedIn) -> f64 {
    let labels = [("answered_by", "redis")];
    let count = async || Page::of(base).await.get("seckill_session_lookups_total", &labels);
    let before = count().await;
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(3) {
        assert_eq!(status(base, user).await, 200);
    }
    count().await - before
}

#[tokio::test]
async fn a_session_that_ends_elsewhere_is_refused_at_once() {
    let stack = Stack::lab(2).await;
    let [one, two] = [&stack.instances[0].url, &stack.instances[1].url];
    tracked(two).await;
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
        assert!(after < SOON, "round {round}: signed in {after:?} after the end");
    }
}

/// A renewal is a change, which is reported as well: the session is then looked up once more. So it is where a PING was late.
/// Without tracking it is looked up four times in three seconds.
#[tokio::test]
async fn a_busy_session_is_looked_up_once_or_twice() {
    let stack = Stack::lab(1).await;
    let user = &stack.users(1).await[0];
    tracked(stack.url()).await;
    let first = lookups(stack.url(), user).await;
    assert!((1.0..=2.0).contains(&first), "{first} look-ups");
    let key = format!("login:token:{}", user.token);
    let mut redis = stack.redis.conn().await;
    let _: bool = redis.expire(&key, 60).await.unwrap();
    let after = lookups(stack.url(), user).await;
    assert!((1.0..=2.0).contains(&after), "{after} look-ups after the renewal");
    assert!(redis.ttl::<_, i64>(&key).await.unwrap() > 60, "renewed");
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
    let stack = Stack::start(0, &[]).await;
    let acl = async |rule: &str| {
        let mut command = redis::cmd("ACL");
        command.arg("SETUSER").arg("app");
        for part in rule.split_whitespace() {
            command.arg(part);
        }
        command.exec_async(&mut stack.redis.conn().await).await.unwrap();
    };
    acl("on >secret ~* &* +@all -client|tracking").await;
    let mut env = stack.env();
    env[1].1 = format!("redis://app:secret@{}/", stack.redis.address());
    let instance = Instance::start(&["--lab".to_owned()], &env).await;
    let base = instance.url.as_str();
    let line = instance.wait_for_line("does not report").await;
    assert!(line.contains("WARN") && line.contains("CLIENT TRACKING"), "{line}");
    let user = &stack.users(1).await[0];
    let looked_up = lookups(base, user).await;
    assert!((3.0..=5.0).contains(&looked_up), "{looked_up} look-ups");
    assert!(!is_tracked(base).await);
    delete(&mut stack.redis.conn().await, user).await;
    let after = refused_after(base, user).await;
    assert!(after < Duration::from_secs(1), "signed in {after:?} after the end");
    assert_eq!(instance.log().iter().filter(|line| line.contains("does not report")).count(), 1);

    acl("+client|tracking").await;
    tracked(base).await;
    instance.wait_for_line("reports ended sessions again").await;
}

#[tokio::test]
async fn sessions_are_tracked_again_after_redis_was_restarted() {
    let mut stack = Stack::lab(1).await;
    let url = stack.url().to_owned();
    tracked(&url).await;
    let users = stack.users(2).await;
    assert_eq!(status(&url, &users[0]).await, 200);
    let restart = async |redis: &mut RedisServer| {
        redis.kill();
        redis.restart().await;
    };
    restart(&mut stack.redis).await;
    delete(&mut stack.redis.conn().await, &users[0]).await;
    let after = refused_after(&url, &users[0]).await;
    assert!(after < Duration::from_secs(1), "signed in {after:?} after the end");
    tracked(&url).await;
    assert_eq!(status(&url, &users[1]).await, 200);
    delete(&mut stack.redis.conn().await, &users[1]).await;
    let after = refused_after(&url, &users[1]).await;
    assert!(after < SOON, "signed in {after:?} after the end");
}
