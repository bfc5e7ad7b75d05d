//! Lost and late replies: the server has run a command, but its reply does not arrive. The command
//! is sent again, and has to count once.

use std::time::{Duration, Instant};

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use redisson_lock::{Error, LockConfig, LostReason};

use super::{eventually, losing_reply, nothing_left, query, renewed, soon, start_behind_proxy};
use testkit::proxy::Mode;

const NAME: &str = "lock:order:1";

#[tokio::test]
async fn a_setnx_command_with_a_lost_reply_counts_once() {
    let (server, proxy, locks) = start_behind_proxy(LockConfig::default()).await;
    let setnx = locks.setnx("lock:setnx:1", Duration::from_secs(60));
    setnx
        .try_acquire()
        .await
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();
    let held = losing_reply(&proxy, setnx.try_acquire())
        .await
        .unwrap()
        .expect("it is free");
    losing_reply(&proxy, held.release()).await.unwrap();
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn a_lost_reply_about_another_owners_lock_is_no_acquire() {
    let (server, proxy, locks) = start_behind_proxy(LockConfig::default()).await;
    let mut raw = server.conn().await;
    let _: () = raw.hset(NAME, "another owner", 1).await.unwrap();
    let _: () = raw.set("lock:setnx:1", "another owner").await.unwrap();
    let lock = locks.lock(NAME);
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert!(
        losing_reply(&proxy, lock.try_acquire())
            .await
            .unwrap()
            .is_none()
    );
    let setnx = locks.setnx("lock:setnx:1", Duration::from_secs(60));
    assert!(
        losing_reply(&proxy, setnx.try_acquire())
            .await
            .unwrap()
            .is_none()
    );
    let _: i64 = query(&mut raw, "DEL", &[NAME, "lock:setnx:1"]).await;
    nothing_left(&server, &[&locks]).await;
}

/// When a hold ends, the last one takes over its number. The release is sent twice under that number: the second sending must
/// not end the hold that has it now.
#[tokio::test]
async fn a_read_hold_whose_release_is_not_answered_ends_alone() {
    let (server, proxy, locks) = start_behind_proxy(LockConfig::default()).await;
    let mut raw = server.conn().await;
    let read = locks.read_write(NAME).read().clone();
    let owner = locks.owner();
    // Loads the scripts, so that the lost reply is that of a release that was executed.
    let first = read.acquire_as(&owner).await.unwrap();
    let second = read.acquire_as(&owner).await.unwrap();
    second.release().await.unwrap();
    first.release().await.unwrap();
    let mut guards = Vec::new();
    for _ in 0..3 {
        guards.push(read.acquire_as(&owner).await.unwrap());
    }
    let outer = guards.remove(0);
    losing_reply(&proxy, outer.release()).await.unwrap();
    for hold in 1..=2 {
        let key = format!("{{{NAME}}}:{owner}:rwlock_timeout:{hold}");
        assert!(raw.exists::<_, bool>(&key).await.unwrap(), "hold {hold}");
    }
    for guard in guards {
        guard.release().await.unwrap();
    }
    nothing_left(&server, &[&locks]).await;
}

/// One of several holds is released, and the release is sent twice. The first sending leaves the other holds: if the second
/// finds none at all, the lock was lost.
#[tokio::test]
async fn a_loss_is_noticed_by_a_release_that_is_not_answered() {
    let (server, proxy, locks) = start_behind_proxy(LockConfig::default()).await;
    let mut raw = server.conn().await;
    let lock = locks.lock(NAME);
    let owner = locks.owner();
    let outer = lock.acquire_as(&owner).await.unwrap();
    let middle = lock.acquire_as(&owner).await.unwrap();
    let inner = lock.acquire_as(&owner).await.unwrap();
    // Loads the script.
    inner.release().await.unwrap();
    let _: () = raw.del(NAME).await.unwrap();
    let released = losing_reply(&proxy, middle.release()).await;
    assert_eq!(released, Err(Error::Lost(LostReason::Expired)));
    assert_eq!(outer.release().await, Err(Error::Lost(LostReason::Expired)));
    nothing_left(&server, &[&locks]).await;
}

/// A lease is counted from before its command was sent, so a late reply does not extend `valid_for`.
#[tokio::test]
async fn a_late_reply_does_not_extend_valid_for() {
    let lease = Duration::from_secs(6);
    let config = LockConfig::default().with_lease(lease);
    let (server, proxy, locks) = start_behind_proxy(config).await;
    let mut raw = server.conn().await;
    let guard = locks.lock(NAME).acquire().await.unwrap();
    // The script is loaded by this, so that later renewals are executed without an answer.
    renewed(|| guard.valid_for()).await;
    // Checks that the guard does not report the lock as valid for longer than the server keeps it, and returns how long the
    // server keeps it. `start` is before both are read, so that the time between the two readings cannot fail the check.
    let checked_lease = async |raw: &mut MultiplexedConnection| {
        let start = Instant::now();
        let valid = guard.valid_for();
        let pttl: i64 = query(raw, "PTTL", &[NAME]).await;
        // The server rounds down to whole milliseconds.
        let remaining_lease = Duration::from_millis(u64::try_from(pttl).expect("it is held") + 1);
        let longest_validity = remaining_lease + start.elapsed();
        assert!(
            valid <= longest_validity,
            "valid for {valid:?}, the server keeps it for {longest_validity:?}"
        );
        remaining_lease
    };
    for _ in 0..2 {
        proxy.set(Mode::HangReplies);
        let mut shortest_lease = lease;
        eventually("the server has renewed it", async || {
            let remaining_lease = checked_lease(&mut raw).await;
            let renewed = remaining_lease > shortest_lease;
            shortest_lease = shortest_lease.min(remaining_lease);
            renewed
        })
        .await;
        // 400 ms of the renewed lease pass before the reply comes.
        let lease_when_answered = lease - Duration::from_millis(400);
        eventually("time passes", async || {
            checked_lease(&mut raw).await < lease_when_answered
        })
        .await;
        let valid_until = Instant::now() + guard.valid_for();
        proxy.set(Mode::Forward);
        eventually("the reply has come", async || {
            checked_lease(&mut raw).await;
            Instant::now() + guard.valid_for() > valid_until + Duration::from_millis(100)
        })
        .await;
        checked_lease(&mut raw).await;
    }
    guard.release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn an_extension_counts_from_before_it_was_sent() {
    let (server, _proxy, locks) = start_behind_proxy(LockConfig::default()).await;
    let lease = Duration::from_secs(20);
    let delay = Duration::from_millis(400);
    let guard = locks
        .lock(NAME)
        .without_renewal(lease / 2)
        .acquire()
        .await
        .unwrap();
    server.pause();
    let (extended, ()) = tokio::join!(guard.extend(lease), async {
        tokio::time::sleep(delay).await;
        server.resume();
    });
    extended.unwrap();
    let valid = guard.valid_for();
    assert!(valid <= lease - delay && valid > lease / 2, "{valid:?}");
    guard.release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn a_lock_kept_alive_by_unanswered_renewals_is_released() {
    let config = LockConfig::default().with_lease(Duration::from_secs(4));
    let (server, proxy, locks) = start_behind_proxy(config).await;
    let mut raw = server.conn().await;
    let guard = locks.lock(NAME).acquire().await.unwrap();
    // With the script loaded, a renewal is one message and needs no reply to take effect.
    let renew = include_str!("../../lua/renew.lua");
    let _: String = query(&mut raw, "SCRIPT", &["LOAD", renew]).await;
    proxy.set(Mode::DropReplies);
    // The server executes every renewal, which this client cannot know, and after them the release that cleans up. That
    // release has to free the lock, not the end of its lease.
    assert_eq!(
        soon("the loss is detected", guard.lost()).await,
        LostReason::Unreachable
    );
    let _: bool = raw.pexpire(NAME, 600_000).await.unwrap();
    proxy.set(Mode::Forward);
    eventually("the lock is free", async || {
        !raw.exists::<_, bool>(NAME).await.unwrap()
    })
    .await;
    let stats: String = query(&mut server.conn().await, "INFO", &["stats"]).await;
    assert!(
        stats.contains("\nexpired_keys:0\r"),
        "it expired, and was not released"
    );
}
