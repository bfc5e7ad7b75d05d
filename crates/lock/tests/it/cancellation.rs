//! Cancellation: a future dropped at any await point leaves nothing behind. Each operation is dropped
//! after one poll, after two, and so on until it completes.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use redisson_lock::kind::{Kind, LockKind};
use redisson_lock::{Error, Lock, Locks};
use tokio::task::JoinHandle;

use super::all_kinds::hold_as_another_owner;
use super::history::lock_under_test::AnyGuard;
use super::{LEASE, eventually, locks, nothing_left, query, start};
use testkit::redis_server::RedisServer;

const NAME: &str = "lock:order:1";

/// More polls than any operation needs.
const POLLS: u32 = 60;

/// A future that ends without an output once the inner one has been polled `polls` times.
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

/// Runs `operation` with 0, 1, 2… polls until it returns that it completed. The operation checks for
/// itself that nothing is left. At least one run has to be cut short, and one has to complete.
pub(super) async fn cut_everywhere(what: &str, mut operation: impl AsyncFnMut(u32) -> bool) {
    for polls in 0..POLLS {
        if operation(polls).await {
            assert!(polls > 1, "{what}: nothing was cut short");
            return;
        }
    }
    panic!("{what}: not completed within {POLLS} polls");
}

/// Polls `inner` at most `polls` times, then drops it; its output if it completed.
pub(super) async fn cut_after<F: Future>(polls: u32, inner: F) -> Option<F::Output> {
    CutAfter { inner: Box::pin(inner), polls }.await
}

/// Starts a task that waits 10 ms and then awaits `release`.
pub(super) fn released_later(
    release: impl Future<Output = Result<(), Error>> + Send + 'static,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(10)).await;
        release.await.unwrap();
    })
}

/// A server and one lock on it.
struct Fixture<K: LockKind> {
    server: RedisServer,
    raw: MultiplexedConnection,
    locks: Locks,
    lock: Lock<K>,
    make: fn(&Locks) -> Lock<K>,
}

impl<K: LockKind> Fixture<K> {
    async fn new(make: fn(&Locks) -> Lock<K>) -> Self {
        let (server, raw, [locks]) = start(LEASE).await;
        let lock = make(&locks);
        Self { server, raw, locks, lock, make }
    }

    /// Runs `operation` once to its end and then [cut everywhere](cut_everywhere). After each run, with
    /// its output dropped, no key, subscription or renewal is left, and no more tasks than before.
    async fn cut<T>(mut self, mut operation: impl AsyncFnMut(&mut Self, u32) -> Option<T>) {
        let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        drop(operation(&mut self, u32::MAX).await.expect("it completes"));
        nothing_left(&self.server, &[&self.locks]).await;
        let before = tasks();
        cut_everywhere("the operation", async |polls| {
            let completed = operation(&mut self, polls).await.is_some();
            nothing_left(&self.server, &[&self.locks]).await;
            eventually("no task is left", async || tasks() <= before).await;
            completed
        })
        .await;
    }
}

async fn try_acquire<K: LockKind>(fixture: Fixture<K>) {
    fixture
        .cut(async |fixture, polls| {
            // Without loaded scripts, the operation has the most steps.
            let _: () = query(&mut fixture.raw, "SCRIPT", &["FLUSH"]).await;
            let owner = fixture.locks.owner();
            let got = cut_after(polls, fixture.lock.try_acquire_as(&owner)).await?;
            got.unwrap().unwrap().release().await.ok()
        })
        .await;
}

async fn acquire<K: LockKind>(fixture: Fixture<K>) {
    fixture
        .cut(async |fixture, polls| {
            let owner = fixture.locks.owner();
            cut_after(polls, fixture.lock.acquire_as(&owner)).await.map(Result::unwrap)
        })
        .await;
}

async fn re_entry<K: LockKind>(fixture: Fixture<K>) {
    fixture
        .cut(async |fixture, polls| {
            let (lock, owner) = (fixture.lock.clone(), fixture.locks.owner());
            let outer = lock.acquire_as(&owner).await.unwrap();
            let inner = cut_after(polls, lock.acquire_as(&owner)).await.map(Result::unwrap);
            let completed = inner.is_some();
            outer.release().await.unwrap();
            if completed {
                assert_eq!(lock.hold_count(&owner).await.unwrap(), 1, "the inner hold is left");
            }
            inner
        })
        .await;
}

async fn release<K: LockKind>(fixture: Fixture<K>) {
    fixture
        .cut(async |fixture, polls| {
            let guard = fixture.lock.acquire().await.unwrap();
            cut_after(polls, guard.release()).await.map(Result::unwrap)
        })
        .await;
}

async fn lost<K: LockKind>(fixture: Fixture<K>) {
    fixture
        .cut(async |fixture, polls| {
            let guard = fixture.lock.acquire().await.unwrap();
            let lost = guard.lost();
            let _: () = fixture.raw.del(NAME).await.unwrap();
            cut_after(polls, lost).await
        })
        .await;
}

async fn waiting_for_a_held_lock<K: LockKind>(fixture: Fixture<K>) {
    fixture
        .cut(async |fixture, polls| {
            hold_as_another_owner(&mut fixture.raw, NAME).await;
            let owner = fixture.locks.owner();
            let waiting = fixture.lock.acquire_within_as(&owner, Duration::from_millis(400));
            let completed = cut_after(polls, waiting).await.map(|got| !matches!(got, Ok(Some(_))));
            let owners: Vec<String> = fixture.raw.hkeys(NAME).await.unwrap();
            let name = owner.to_string();
            assert!(!owners.iter().any(|field| field.contains(&name)), "{owners:?}");
            let _: () = fixture.raw.del(NAME).await.unwrap();
            completed.inspect(|refused| assert!(refused))
        })
        .await;
}

async fn waiting_until_released<K: LockKind>(fixture: Fixture<K>) {
    let there = locks(&fixture.server, LEASE).await;
    fixture
        .cut(async |fixture, polls| {
            // Readers share, so that only a writer makes a reader wait.
            let holder: Box<dyn AnyGuard> = if K::KIND == Kind::Read {
                let both = there.read_write(NAME);
                Box::new(both.write().acquire().await.unwrap())
            } else {
                Box::new((fixture.make)(&there).acquire().await.unwrap())
            };
            let releasing = released_later(holder.release());
            let owner = fixture.locks.owner();
            let got = cut_after(polls, fixture.lock.acquire_as(&owner)).await.map(Result::unwrap);
            releasing.await.unwrap();
            got
        })
        .await;
}

async fn force_unlock<K: LockKind>(fixture: Fixture<K>) {
    fixture
        .cut(async |fixture, polls| {
            let guard = fixture.lock.acquire().await.unwrap();
            let unlocked = cut_after(polls, fixture.lock.force_unlock()).await.map(Result::unwrap);
            drop(guard);
            unlocked
        })
        .await;
}

/// Makes each operation on each kind of lock a test.
macro_rules! cut_everywhere {
    ($($lock:ident: $make:expr;)+) => {
        $(mod $lock {
            use super::*;
            cut_everywhere!(@ $make; try_acquire acquire re_entry release lost
                waiting_for_a_held_lock waiting_until_released force_unlock);
        })+
    };
    (@ $make:expr; $($operation:ident)+) => {
        $(#[tokio::test]
        async fn $operation() {
            super::$operation(Fixture::new($make).await).await;
        })+
    };
}

cut_everywhere! {
    reentrant: |locks| locks.lock(NAME);
    fenced: |locks| locks.fenced(NAME);
    fair: |locks| locks.fair(NAME);
    read: |locks| locks.read_write(NAME).read().clone();
    write: |locks| locks.read_write(NAME).write().clone();
}

#[tokio::test]
async fn a_cancelled_waiter_passes_its_wakeup_on() {
    let server = RedisServer::start().await;
    let config = redisson_lock::LockConfig::default();
    let locks = Locks::connect(server.client(), config).await.unwrap();
    let lock = locks.lock(NAME);
    for polls in 1..12 {
        let guard = lock.acquire().await.unwrap();
        // The first waiter is cancelled at some point between its sleep and its next attempt.
        let cancelled = tokio::spawn({
            let (lock, owner) = (lock.clone(), locks.owner());
            async move { drop(cut_after(polls, lock.acquire_as(&owner)).await.map(Result::unwrap)) }
        });
        let waits = async || locks.usage().channels == 1 || cancelled.is_finished();
        eventually("it waits, or was cancelled", waits).await;
        let remaining = tokio::spawn({
            let (lock, owner) = (lock.clone(), locks.owner());
            async move { lock.acquire_as(&owner).await.unwrap().release().await.unwrap() }
        });
        eventually("a waiter is left", async || locks.usage().channels == 1).await;
        guard.release().await.unwrap();
        // Without the wake-up it would sleep for the rest of a lease of 30 s.
        let both = async { tokio::join!(cancelled, remaining) };
        let (cancelled, remaining) = tokio::time::timeout(Duration::from_secs(10), both)
            .await
            .expect("the wake-up was lost");
        cancelled.unwrap();
        remaining.unwrap();
    }
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn setnx_lock() {
    let (server, _, [locks]) = start(LEASE).await;
    let lock = locks.setnx("lock:setnx:1", Duration::from_secs(60));
    cut_everywhere("acquire", async |polls| {
        let held = cut_after(polls, lock.try_acquire()).await.map(|got| got.unwrap().unwrap());
        let completed = held.is_some();
        drop(held);
        nothing_left(&server, &[&locks]).await;
        completed
    })
    .await;
    cut_everywhere("release", async |polls| {
        let held = lock.try_acquire().await.unwrap().unwrap();
        let completed = cut_after(polls, held.release()).await.map(Result::unwrap).is_some();
        nothing_left(&server, &[&locks]).await;
        completed
    })
    .await;
}
