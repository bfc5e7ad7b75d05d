//! Replies that get lost: the server carried the command out, and nobody heard. A command is sent
//! again then, and must count once.

use std::time::{Duration, Instant};

use redis::AsyncCommands;
use redisson_lock::{Error, LockConfig, Locks, LostReason};

use super::{ask, eventually, nothing_left, soon};
use crate::support::proxy::{Mode, Proxy};
use crate::support::redis_server::RedisServer;

const NAME: &str = "lock:order:1";

async fn before(server: &RedisServer) -> Proxy {
    Proxy::start(server.address()).await.unwrap()
}

#[tokio::test]
async fn a_lost_reply_costs_neither_a_count_nor_an_error() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let lossy = before(&server).await;
    let locks = Locks::connect(lossy.redis(), LockConfig::default()).await.unwrap();
    let me = locks.owner();
    let lock = locks.reentrant(NAME).unwrap();
    // Once without loss, so that the scripts are known and the next reply is the script's.
    lock.acquire(&me).await.unwrap().release().await.unwrap();

    lossy.set(Mode::LoseReply);
    let outer = lock.try_acquire(&me).await.unwrap().expect("it is free");
    assert_eq!(lossy.mode(), Mode::Forward, "it was lost");
    assert_eq!(lock.hold_count(&me).await.unwrap(), 1);
    lossy.set(Mode::LoseReply);
    let inner = lock.try_acquire(&me).await.unwrap().expect("it is ours");
    assert_eq!(lossy.mode(), Mode::Forward, "it was lost");
    assert_eq!(lock.hold_count(&me).await.unwrap(), 2);
    lossy.set(Mode::LoseReply);
    inner.release().await.unwrap();
    assert_eq!(lossy.mode(), Mode::Forward, "it was lost");
    assert_eq!(lock.hold_count(&me).await.unwrap(), 1);
    lossy.set(Mode::LoseReply);
    outer.release().await.unwrap();
    assert_eq!(lossy.mode(), Mode::Forward, "it was lost");
    assert!(!raw.exists::<_, bool>(NAME).await.unwrap());

    let simple = locks.setnx("lock:setnx:1", Duration::from_secs(60));
    simple.try_acquire().await.unwrap().unwrap().release().await.unwrap();
    lossy.set(Mode::LoseReply);
    let held = simple.try_acquire().await.unwrap().expect("it is free");
    assert_eq!(lossy.mode(), Mode::Forward, "it was lost");
    lossy.set(Mode::LoseReply);
    held.release().await.unwrap();
    assert_eq!(lossy.mode(), Mode::Forward, "it was lost");
    nothing_left(&server, &[&locks]).await;
}

/// "It is gone" after a lost reply may mean two things; past the lease nobody can tell which.
#[tokio::test]
async fn a_release_past_its_lease_whose_reply_is_lost_is_not_called_a_success() {
    let server = RedisServer::start().await;
    let lossy = before(&server).await;
    let locks = Locks::connect(lossy.redis(), LockConfig::default()).await.unwrap();
    let lock = locks.reentrant(NAME).unwrap();
    lock.acquire(&locks.owner()).await.unwrap().release().await.unwrap();
    let guard = lock.with_lease(Duration::from_millis(100)).acquire(&locks.owner()).await.unwrap();
    lossy.set(Mode::LoseReply);
    // The whole process sleeps, so that nobody in it notices the end of the lease.
    std::thread::sleep(Duration::from_millis(150));
    let error = guard.release().await.unwrap_err();
    assert_eq!(lossy.mode(), Mode::Forward, "it was lost");
    assert!(matches!(error, Error::Unknown { .. } | Error::Lost(_)), "{error:?}");
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn a_lost_reply_about_a_foreign_lock_is_no_acquire() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let lossy = before(&server).await;
    let locks = Locks::connect(lossy.redis(), LockConfig::default()).await.unwrap();
    let _: () = raw.hset(NAME, "somebody else", 1).await.unwrap();
    let _: () = raw.set("lock:setnx:1", "somebody else").await.unwrap();
    let lock = locks.reentrant(NAME).unwrap();
    assert!(lock.try_acquire(&locks.owner()).await.unwrap().is_none());
    lossy.set(Mode::LoseReply);
    assert!(lock.try_acquire(&locks.owner()).await.unwrap().is_none());
    assert_eq!(lossy.mode(), Mode::Forward, "it was lost");
    lossy.set(Mode::LoseReply);
    let simple = locks.setnx("lock:setnx:1", Duration::from_secs(60));
    assert!(simple.try_acquire().await.unwrap().is_none());
    assert_eq!(lossy.mode(), Mode::Forward, "it was lost");
    let _: i64 = ask(&mut raw, "DEL", &[NAME, "lock:setnx:1"]).await;
    nothing_left(&server, &[&locks]).await;
}

/// A renewal counts from before it was sent: a late answer makes no claim longer.
#[tokio::test]
async fn late_answers_do_not_lengthen_a_claim() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let slow = before(&server).await;
    let lease = Duration::from_secs(2);
    let config = LockConfig::default().with_lease(lease);
    let locks = Locks::connect(slow.redis(), config).await.unwrap();
    let guard = locks.reentrant(NAME).unwrap().acquire(&locks.owner()).await.unwrap();
    let end = Instant::now() + lease * 2;
    let mut late = false;
    while Instant::now() < end {
        late = !late;
        slow.set(if late { Mode::HangReplies } else { Mode::Forward });
        let turn = Instant::now() + Duration::from_millis(if late { 200 } else { 40 });
        while Instant::now() < turn {
            let (asked, claimed) = (Instant::now(), guard.valid_for());
            let left: i64 = ask(&mut raw, "PTTL", &[NAME]).await;
            // Not counting a millisecond that the server rounds away.
            let left = Duration::from_millis(u64::try_from(left).unwrap_or(0) + 1);
            let sure = left + asked.elapsed();
            assert!(claimed <= sure, "claims {claimed:?}, the server keeps it for {sure:?}");
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }
    slow.set(Mode::Forward);
    guard.release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn what_renewals_without_an_answer_kept_is_given_back() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let lossy = before(&server).await;
    let config = LockConfig::default().with_lease(Duration::from_secs(4));
    let locks = Locks::connect(lossy.redis(), config).await.unwrap();
    let guard = locks.reentrant(NAME).unwrap().acquire(&locks.owner()).await.unwrap();
    // Known scripts, so that a renewal is one message, whose answer is not needed.
    let renew = include_str!("../../lua/renew.lua");
    let _: String = ask(&mut raw, "SCRIPT", &["LOAD", renew]).await;
    lossy.set(Mode::Deaf);
    // Nobody here can know it, but the server hears every renewal. (It is asked before the loss is
    // noticed: the clean-up that follows is heard as well.)
    let kept_until = async {
        let mut latest = Instant::now();
        loop {
            let left: i64 = ask(&mut raw.clone(), "PTTL", &[NAME]).await;
            if let Ok(left) = u64::try_from(left) {
                latest = latest.max(Instant::now() + Duration::from_millis(left));
            }
            if guard.valid_for().is_zero() {
                return latest;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let (reason, kept_until) = tokio::join!(soon("the loss is noticed", guard.lost()), kept_until);
    assert_eq!(reason, LostReason::Unreachable);
    lossy.set(Mode::Forward);
    let gone = async || !raw.exists::<_, bool>(NAME).await.unwrap();
    eventually("the lock is free", gone).await;
    let early = kept_until.saturating_duration_since(Instant::now());
    assert!(early > Duration::from_millis(500), "{early:?} before its end: it just expired");
}
