//! Dropping a future at any await point leaves nothing behind. Each operation is polled once,
//! dropped; polled twice, dropped; and so on until it completes.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use redisson_lock::kind::{Kind, LockKind};
use redisson_lock::{Lock, Locks, ProcessLocks};

use super::history::subject::Holding;
use super::{ask, eventually, locks, nothing_left};
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

/// A server and one lock on it.
struct Scene<K: LockKind> {
    server: RedisServer,
    raw: MultiplexedConnection,
    locks: Locks,
    lock: Lock<K>,
    make: fn(&Locks) -> Lock<K>,
}

impl<K: LockKind> Scene<K> {
    async fn new(make: fn(&Locks) -> Lock<K>) -> Self {
        let server = RedisServer::start().await;
        let (raw, locks) = (server.conn().await, locks(&server).await);
        let lock = make(&locks);
        Self { server, raw, locks, lock, make }
    }

    /// Cut `operation` everywhere, having let it pass once. What it gets is dropped; afterwards no
    /// key, no subscription, no renewal is left, and no more tasks than it began with.
    async fn cut<T>(mut self, mut operation: impl AsyncFnMut(&mut Self, u32) -> Option<T>) {
        let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        drop(operation(&mut self, u32::MAX).await.expect("it passes"));
        nothing_left(&self.server, &[&self.locks]).await;
        let before = tasks();
        for polls in 0..POLLS {
            let completed = operation(&mut self, polls).await.is_some();
            nothing_left(&self.server, &[&self.locks]).await;
            eventually("no task is left", async || tasks() <= before).await;
            if completed {
                assert!(polls > 1, "nothing was cut short");
                return;
            }
        }
        panic!("never completed within {POLLS} polls");
    }

    /// Held by somebody else, in a way that every member respects.
    async fn taken(&mut self, lease: i64) {
        let fields = [("mode", "write"), ("somebody:1", "1"), ("somebody:1:write", "1")];
        let _: () = self.raw.hset_multiple(NAME, &fields).await.unwrap();
        let _: bool = self.raw.pexpire(NAME, lease).await.unwrap();
    }
}

async fn try_acquire<K: LockKind>(scene: Scene<K>) {
    scene
        .cut(async |scene, polls| {
            // Unknown scripts take the longest way.
            let _: () = ask(&mut scene.raw, "SCRIPT", &["FLUSH"]).await;
            let me = scene.locks.owner();
            let got = cut_after(polls, scene.lock.try_acquire(&me)).await?;
            got.unwrap().unwrap().release().await.ok()
        })
        .await;
}

async fn acquire<K: LockKind>(scene: Scene<K>) {
    scene
        .cut(async |scene, polls| {
            let me = scene.locks.owner();
            cut_after(polls, scene.lock.acquire(&me)).await.map(Result::unwrap)
        })
        .await;
}

async fn re_entry<K: LockKind>(scene: Scene<K>) {
    scene
        .cut(async |scene, polls| {
            let (lock, me) = (scene.lock.clone(), scene.locks.owner());
            let outer = lock.acquire(&me).await.unwrap();
            let inner = cut_after(polls, lock.acquire(&me)).await.map(Result::unwrap);
            let completed = inner.is_some();
            outer.release().await.unwrap();
            if completed {
                assert_eq!(lock.hold_count(&me).await.unwrap(), 1, "the inner guard holds on");
            }
            inner
        })
        .await;
}

async fn release<K: LockKind>(scene: Scene<K>) {
    scene
        .cut(async |scene, polls| {
            let guard = scene.lock.acquire(&scene.locks.owner()).await.unwrap();
            cut_after(polls, guard.release()).await.map(Result::unwrap)
        })
        .await;
}

async fn lost<K: LockKind>(scene: Scene<K>) {
    scene
        .cut(async |scene, polls| {
            let guard = scene.lock.acquire(&scene.locks.owner()).await.unwrap();
            let lost = guard.lost();
            let _: () = scene.raw.del(NAME).await.unwrap();
            cut_after(polls, lost).await
        })
        .await;
}

async fn waiting_while_it_stays_held<K: LockKind>(scene: Scene<K>) {
    scene
        .cut(async |scene, polls| {
            scene.taken(60_000).await;
            let me = scene.locks.owner();
            let waiting = scene.lock.acquire_within(&me, Duration::from_millis(60));
            let completed = cut_after(polls, waiting).await.map(Result::unwrap);
            let owners: Vec<String> = scene.raw.hkeys(NAME).await.unwrap();
            assert!(!owners.iter().any(|owner| owner.contains(&me.to_string())), "{owners:?}");
            let _: () = scene.raw.del(NAME).await.unwrap();
            completed.inspect(|got| assert!(got.is_none()))
        })
        .await;
}

async fn waiting_until_it_comes_free<K: LockKind>(scene: Scene<K>) {
    let there = locks(&scene.server).await;
    scene
        .cut(async |scene, polls| {
            // Readers let readers in, so that it takes a writer to keep them waiting.
            let holder: Box<dyn Holding> = if K::KIND == Kind::Read {
                let both = there.read_write(NAME).unwrap();
                Box::new(both.write().acquire(&there.owner()).await.unwrap())
            } else {
                Box::new((scene.make)(&there).acquire(&there.owner()).await.unwrap())
            };
            let letting_go = tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(10)).await;
                holder.release().await.unwrap();
            });
            let me = scene.locks.owner();
            let got = cut_after(polls, scene.lock.acquire(&me)).await.map(Result::unwrap);
            letting_go.await.unwrap();
            got
        })
        .await;
}

async fn force_unlock<K: LockKind>(scene: Scene<K>) {
    scene
        .cut(async |scene, polls| {
            let guard = scene.lock.acquire(&scene.locks.owner()).await.unwrap();
            let freed = cut_after(polls, scene.lock.force_unlock()).await.map(Result::unwrap);
            drop(guard);
            freed
        })
        .await;
}

async fn asking<K: LockKind>(scene: Scene<K>) {
    scene
        .cut(async |scene, polls| {
            let (lock, me) = (scene.lock.clone(), scene.locks.owner());
            let all = async {
                lock.remaining().await.unwrap();
                lock.hold_count(&me).await.unwrap();
                lock.is_locked().await.unwrap();
            };
            cut_after(polls, all).await
        })
        .await;
}

/// Each operation of each lock: a lock is added by a line.
macro_rules! cut_everywhere {
    ($($lock:ident: $make:expr;)+) => {
        $(mod $lock {
            use super::*;
            cut_everywhere!(@ $make; try_acquire acquire re_entry release lost
                waiting_while_it_stays_held waiting_until_it_comes_free force_unlock asking);
        })+
    };
    (@ $make:expr; $($operation:ident)+) => {
        $(#[tokio::test]
        async fn $operation() {
            super::$operation(Scene::new($make).await).await;
        })+
    };
}

cut_everywhere! {
    reentrant: |locks| locks.reentrant(NAME).unwrap();
    fenced: |locks| locks.fenced(NAME).unwrap();
    fair: |locks| locks.fair(NAME).unwrap();
    read: |locks| locks.read_write(NAME).unwrap().read().clone();
    write: |locks| locks.read_write(NAME).unwrap().write().clone();
}

#[tokio::test]
async fn a_woken_waiter_that_goes_away_hands_the_wake_on() {
    let server = RedisServer::start().await;
    let config = redisson_lock::LockConfig::default();
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
