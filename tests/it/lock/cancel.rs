//! Dropping a future at any await point leaves nothing behind. Each operation is polled once,
//! dropped; polled twice, dropped; and so on until it completes.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use redis::AsyncCommands;
use seckill::lock::{Locks, ProcessLocks};

use super::{eventually, locks, nothing_left};
use crate::support::redis_server::RedisServer;

const NAME: &str = "lock:order:1";

/// More polls than any operation needs.
pub const POLLS: u32 = 60;

/// A future that gives up, dropping the inner one, as soon as it was polled so many times.
struct CutAfter<F> {
    inner: Pin<Box<F>>,
    polls: u32,
}

impl<F: Future> Future for CutAfter<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.polls == 0 {
            return Poll::Ready(None);
        }
        self.polls -= 1;
        match self.inner.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if self.polls == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// Run `operation` with ever more polls, and look after each that nothing is left. It returns
/// whether the operation completed. At least one run must be cut short and one must complete.
pub(super) async fn cut_everywhere(
    server: &RedisServer,
    locks: &[&Locks],
    mut operation: impl AsyncFnMut(u32) -> bool,
) {
    for polls in 0..POLLS {
        let completed = operation(polls).await;
        nothing_left(server, locks).await;
        if completed {
            assert!(polls > 1, "nothing was cut short");
            return;
        }
    }
    panic!("never completed within {POLLS} polls");
}

pub(super) async fn cut_after<F: Future>(polls: u32, inner: F) -> Option<F::Output> {
    CutAfter { inner: Box::pin(inner), polls }.await
}

#[tokio::test]
async fn try_acquire() {
    let server = RedisServer::start().await;
    let locks = locks(&server).await;
    let lock = locks.reentrant(NAME).unwrap();
    cut_everywhere(&server, &[&locks], async |polls| {
        let me = locks.owner();
        let result = cut_after(polls, lock.try_acquire(&me)).await;
        match result {
            Some(guard) => guard.unwrap().unwrap().release().await.is_ok(),
            None => false,
        }
    })
    .await;
}

#[tokio::test]
async fn first_acquire_after_script_flush() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = locks(&server).await;
    let lock = locks.reentrant(NAME).unwrap();
    cut_everywhere(&server, &[&locks], async |polls| {
        let _: () = super::ask(&mut raw, "SCRIPT", &["FLUSH"]).await;
        let me = locks.owner();
        cut_after(polls, lock.acquire(&me)).await.map(Result::unwrap).is_some()
    })
    .await;
}

#[tokio::test]
async fn re_entry() {
    let server = RedisServer::start().await;
    let locks = locks(&server).await;
    let lock = locks.reentrant(NAME).unwrap();
    cut_everywhere(&server, &[&locks], async |polls| {
        let me = locks.owner();
        let outer = lock.acquire(&me).await.unwrap();
        let inner = cut_after(polls, lock.acquire(&me)).await.map(Result::unwrap);
        let completed = inner.is_some();
        outer.release().await.unwrap();
        if !completed {
            return false;
        }
        assert_eq!(lock.hold_count(&me).await.unwrap(), 1, "the inner guard holds on");
        drop(inner);
        true
    })
    .await;
}

#[tokio::test]
async fn release() {
    let server = RedisServer::start().await;
    let locks = locks(&server).await;
    let lock = locks.reentrant(NAME).unwrap();
    cut_everywhere(&server, &[&locks], async |polls| {
        let guard = lock.acquire(&locks.owner()).await.unwrap();
        cut_after(polls, guard.release()).await.map(Result::unwrap).is_some()
    })
    .await;
}

#[tokio::test]
async fn waiting_while_the_lock_stays_held() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = locks(&server).await;
    let lock = locks.reentrant(NAME).unwrap();
    cut_everywhere(&server, &[&locks], async |polls| {
        // Held by somebody else for ever, so that every await point of the wait is reached.
        let _: () = raw.hset(NAME, "somebody else", 1).await.unwrap();
        let _: bool = raw.pexpire(NAME, 60_000).await.unwrap();
        let me = locks.owner();
        let waiting = lock.acquire_within(&me, Duration::from_millis(60));
        let completed = cut_after(polls, waiting).await;
        let owners: Vec<String> = raw.hkeys(NAME).await.unwrap();
        assert_eq!(owners, ["somebody else"]);
        let _: () = raw.del(NAME).await.unwrap();
        completed.map(Result::unwrap).inspect(|got| assert!(got.is_none())).is_some()
    })
    .await;
}

#[tokio::test]
async fn waiting_until_the_lock_comes_free() {
    let server = RedisServer::start().await;
    let (here, there) = (locks(&server).await, locks(&server).await);
    let lock = here.reentrant(NAME).unwrap();
    cut_everywhere(&server, &[&here, &there], async |polls| {
        let holder = there.reentrant(NAME).unwrap().acquire(&there.owner()).await.unwrap();
        let letting_go = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            holder.release().await.unwrap();
        });
        let me = here.owner();
        let got = cut_after(polls, lock.acquire(&me)).await.map(Result::unwrap);
        letting_go.await.unwrap();
        got.is_some()
    })
    .await;
}

#[tokio::test]
async fn a_woken_waiter_that_goes_away_hands_the_wake_on() {
    let server = RedisServer::start().await;
    let config = seckill::lock::LockConfig::default();
    let locks = Locks::connect(server.client(), config).await.unwrap();
    let lock = locks.reentrant(NAME).unwrap();
    for polls in 1..12 {
        let guard = lock.acquire(&locks.owner()).await.unwrap();
        // The first in line gives up somewhere between sleeping and its next try.
        let quitter = tokio::spawn({
            let (lock, me) = (lock.clone(), locks.owner());
            async move { drop(cut_after(polls, lock.acquire(&me)).await.map(Result::unwrap)) }
        });
        let waits = async || locks.usage().channels == 1 || quitter.is_finished();
        eventually("it waits, or has given up", waits).await;
        let stayer = tokio::spawn({
            let (lock, me) = (lock.clone(), locks.owner());
            async move { lock.acquire(&me).await.unwrap().release().await.unwrap() }
        });
        eventually("somebody waits", async || locks.usage().channels == 1).await;
        guard.release().await.unwrap();
        // Without the wake it would sleep for the rest of a lease of 30 s.
        let both = async { tokio::join!(quitter, stayer) };
        let (quitter, stayer) =
            tokio::time::timeout(Duration::from_secs(10), both).await.expect("the wake was lost");
        quitter.unwrap();
        stayer.unwrap();
    }
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn simple_lock() {
    let server = RedisServer::start().await;
    let locks = locks(&server).await;
    let lock = locks.setnx("lock:setnx:1", Duration::from_secs(60));
    cut_everywhere(&server, &[&locks], async |polls| {
        cut_after(polls, lock.try_acquire()).await.map(|got| got.unwrap().unwrap()).is_some()
    })
    .await;
    cut_everywhere(&server, &[&locks], async |polls| {
        let held = lock.try_acquire().await.unwrap().unwrap();
        cut_after(polls, held.release()).await.map(Result::unwrap).is_some()
    })
    .await;
}

#[tokio::test]
async fn process_lock() {
    let locks = ProcessLocks::new();
    let held = locks.acquire(7).await;
    for polls in 0..=1 {
        assert!(cut_after(polls, locks.acquire(7)).await.is_none());
        assert_eq!(locks.len(), 1);
    }
    let next = locks.acquire(7);
    drop(held);
    drop(next.await);
    assert!(locks.is_empty());
}
