//! Acquires that Redis executes late, when nobody waits for them any more: they must not take the lock.

use std::time::Duration;

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use redisson_lock::kind::LockKind;
use redisson_lock::{Error, Lock, LockConfig};

use super::late_release::behind_sentinel;
use super::{TIMEOUT, eventually, query, start_behind_proxy};
use testkit::proxy::{Mode, Proxy};
use testkit::redis_server::RedisServer;

/// The proxy keeps requests with the word `late` in them.
const KEY: &str = "setnx:late";

/// As in the README's recipe for a job that is done once a day.
const DAY: Duration = Duration::from_secs(24 * 3600);

/// The acquire is sent again on a new connection and answered; the first copy comes afterwards.
#[tokio::test]
async fn a_late_copy_of_a_resent_acquire_holds_nothing() {
    let config = LockConfig::default().with_command_timeout(TIMEOUT);
    let (server, proxy, locks) = start_behind_proxy(config).await;
    let mut raw = server.conn().await;
    let lock = locks.setnx(KEY, DAY);
    let first = lock.try_acquire().await.unwrap().unwrap();
    first.release().await.unwrap();
    for refused in [false, true] {
        if refused {
            let _: () = raw.set(KEY, "another owner").await.unwrap();
        }
        proxy.set(Mode::HoldRequest);
        let held = lock.try_acquire().await.unwrap();
        assert_eq!(proxy.held(), 1, "no request is late");
        assert_eq!(held.is_none(), refused);
        match held {
            Some(held) => held.release().await.unwrap(),
            None => raw.del(KEY).await.unwrap(),
        }
        proxy.pass_held().await;
        assert!(
            !raw.exists::<_, bool>(KEY).await.unwrap(),
            "refused: {refused}"
        );
    }
}

#[tokio::test]
async fn a_late_copy_of_a_resent_acquire_holds_nothing_whatever_the_kind() {
    let config = LockConfig::default().with_command_timeout(TIMEOUT);
    let (server, proxy, locks) = start_behind_proxy(config).await;
    let mut raw = server.conn().await;
    late_copy_holds_nothing(&proxy, &mut raw, &locks.lock("lock:late")).await;
    late_copy_holds_nothing(&proxy, &mut raw, &locks.fenced("fenced:late")).await;
    late_copy_holds_nothing(&proxy, &mut raw, &locks.fair("fair:late")).await;
    let lock = locks.read_write("read-write:late");
    late_copy_holds_nothing(&proxy, &mut raw, lock.read()).await;
    late_copy_holds_nothing(&proxy, &mut raw, lock.write()).await;
}

async fn late_copy_holds_nothing<K: LockKind>(
    proxy: &Proxy,
    raw: &mut MultiplexedConnection,
    lock: &Lock<K>,
) {
    // Loads the scripts, so that one request is one acquire.
    let first = lock.acquire().await.unwrap();
    first.release().await.unwrap();
    proxy.set(Mode::HoldRequest);
    let held = lock.try_acquire().await.unwrap().unwrap();
    assert_eq!(proxy.held(), 1, "no request is late: {lock:?}");
    held.release().await.unwrap();
    proxy.pass_held().await;
    let keys = holding(raw, lock.name()).await;
    assert!(keys.is_empty(), "{lock:?} is held: {keys:?}");
}

/// The keys with the lock's name that say that it is held or waited for.
pub(super) async fn holding(raw: &mut MultiplexedConnection, name: &str) -> Vec<String> {
    let mut keys: Vec<String> = query(raw, "KEYS", &[&format!("*{name}*")]).await;
    keys.retain(|key| {
        !key.starts_with("redisson_unlock_latch:") && !key.starts_with("redisson_lock_token:")
    });
    keys
}

#[tokio::test]
async fn an_acquire_that_was_given_up_holds_nothing_whatever_the_kind() {
    let (servers, proxy, locks) = behind_sentinel().await;
    let mut raw = servers[0].conn().await;
    given_up_holds_nothing(&proxy, &mut raw, &locks.lock("lock:late")).await;
    given_up_holds_nothing(&proxy, &mut raw, &locks.fenced("fenced:late")).await;
    given_up_holds_nothing(&proxy, &mut raw, &locks.fair("fair:late")).await;
    given_up_holds_nothing(&proxy, &mut raw, locks.read_write("read:late").read()).await;
    given_up_holds_nothing(&proxy, &mut raw, locks.read_write("write:late").write()).await;
}

async fn given_up_holds_nothing<K: LockKind>(
    proxy: &Proxy,
    raw: &mut MultiplexedConnection,
    lock: &Lock<K>,
) {
    let first = lock.acquire().await.unwrap();
    first.release().await.unwrap();
    proxy.set(Mode::HoldRequests("late"));
    fails_as!(lock.try_acquire().await, Unavailable);
    proxy.set(Mode::Forward);
    let raised = format!("redisson_unlock_latch:{{{}}}:*", lock.name());
    eventually("its generation is raised", async || {
        query::<Vec<String>>(raw, "KEYS", &[&raised]).await.len() == 1
    })
    .await;
    assert!(proxy.held() > 0, "no request is late: {lock:?}");
    proxy.pass_held().await;
    let keys = holding(raw, lock.name()).await;
    assert!(keys.is_empty(), "{lock:?} is held: {keys:?}");
}

/// No sending is answered in time, and the call fails. Its clean-up is over when the acquire arrives. The
/// clean-up goes on for longer than the lease, because the acquire may arrive after the lease.
#[tokio::test]
async fn an_acquire_that_was_given_up_holds_nothing() {
    let (servers, proxy, locks) = behind_sentinel().await;
    let mut raw = servers[0].conn().await;
    let short = Duration::from_secs(1);
    for (round, lease) in [(1, DAY), (2, short)] {
        let lock = locks.setnx(KEY, lease);
        let first = lock.try_acquire().await.unwrap().unwrap();
        first.release().await.unwrap();
        proxy.set(Mode::HoldRequests("late"));
        fails_as!(lock.try_acquire().await, Unavailable);
        if lease == short {
            tokio::time::sleep(short * 2).await;
        }
        proxy.set(Mode::Forward);
        eventually("it is ended", async || {
            query::<Vec<String>>(&mut raw, "KEYS", &["redisson_unlock_latch:{setnx:late}:*"])
                .await
                .len()
                == round
        })
        .await;
        assert!(proxy.held() > 0, "no request is late");
        proxy.pass_held().await;
        assert!(!raw.exists::<_, bool>(KEY).await.unwrap());
    }
}

/// The command that raises a generation is sent again until it is answered, so a copy of it may arrive
/// late. This test sends it late itself.
#[tokio::test]
async fn a_generation_that_is_raised_late_is_not_lowered() {
    const RAISE: &str = include_str!("../../lua/raise_generation.lua");
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    for (raised, expected) in [(9, 9), (10, 10), (9, 10), (100, 100)] {
        let arguments = [RAISE, "1", "generation", &raised.to_string(), "60000"];
        let () = query(&mut raw, "EVAL", &arguments).await;
        let generation: u64 = raw.get("generation").await.unwrap();
        assert_eq!(generation, expected, "after {raised}");
    }
}
