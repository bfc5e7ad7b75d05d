//! Cancellation: a future dropped at any await point leaves nothing behind. Each operation is dropped
//! after one poll, after two, and so on until it completes.

use std::future::Future;
use std::task::Poll;
use std::time::Duration;

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use redisson_lock::kind::{Kind, LockKind};
use redisson_lock::{Error, Lock, Locks};
use tokio::task::JoinHandle;

use super::all_kinds::{all_kinds, hold_as_another_owner};
use super::history::lock_under_test::AnyGuard;
use super::{LEASE, eventually, locks, nothing_left, query, start};
use testkit::redis_server::RedisServer;

const NAME: &str = "lock:order:1";

/// More polls than any operation needs.
const POLLS: u32 = 60;

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
    let mut inner = Box::pin(inner);
    let mut remaining_polls = polls;
    std::future::poll_fn(|cx| {
        if remaining_polls == 0 {
            return Poll::Ready(None);
        }
        remaining_polls -= 1;
        match inner.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if remaining_polls == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
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
}

impl<K: LockKind> Fixture<K> {
    async fn new(make: fn(&Locks) -> Lock<K>) -> Self {
        let (server, raw, [locks]) = start(LEASE).await;
        let lock = make(&locks);
        Self {
            server,
            raw,
            locks,
            lock,
        }
    }

    /// Runs `operation` once to its end and then [cut everywhere](cut_everywhere). After each run, with
    /// its output dropped, no key, subscription or renewal is left, and no more tasks than before.
    async fn cut<T>(mut self, mut operation: impl AsyncFnMut(&mut Self, u32) -> Option<T>) {
        let tasks = || {
            tokio::runtime::Handle::current()
                .metrics()
                .num_alive_tasks()
        };
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

async fn try_acquire<K: LockKind>(make: fn(&Locks) -> Lock<K>) {
    Fixture::new(make)
        .await
        .cut(async |fixture, polls| {
            // Without loaded scripts, the operation has the most steps.
            let _: () = query(&mut fixture.raw, "SCRIPT", &["FLUSH"]).await;
            let owner = fixture.locks.owner();
            let got = cut_after(polls, fixture.lock.try_acquire_as(&owner)).await?;
            got.unwrap().unwrap().release().await.ok()
        })
        .await;
}

async fn re_entry<K: LockKind>(make: fn(&Locks) -> Lock<K>) {
    Fixture::new(make)
        .await
        .cut(async |fixture, polls| {
            let lock = fixture.lock.clone();
            let owner = fixture.locks.owner();
            let outer = lock.acquire_as(&owner).await.unwrap();
            let inner = cut_after(polls, lock.acquire_as(&owner))
                .await
                .map(Result::unwrap);
            let completed = inner.is_some();
            outer.release().await.unwrap();
            if completed {
                assert_eq!(
                    lock.hold_count(&owner).await.unwrap(),
                    1,
                    "the inner hold is left"
                );
            }
            inner
        })
        .await;
}

async fn release<K: LockKind>(make: fn(&Locks) -> Lock<K>) {
    Fixture::new(make)
        .await
        .cut(async |fixture, polls| {
            let guard = fixture.lock.acquire().await.unwrap();
            cut_after(polls, guard.release()).await.map(Result::unwrap)
        })
        .await;
}

async fn waiting_for_a_held_lock<K: LockKind>(make: fn(&Locks) -> Lock<K>) {
    Fixture::new(make)
        .await
        .cut(async |fixture, polls| {
            hold_as_another_owner(&mut fixture.raw, NAME).await;
            let owner = fixture.locks.owner();
            let waiting = fixture
                .lock
                .acquire_within_as(&owner, Duration::from_millis(400));
            let completed = cut_after(polls, waiting)
                .await
                .map(|got| !matches!(got, Ok(Some(_))));
            let owners: Vec<String> = fixture.raw.hkeys(NAME).await.unwrap();
            let name = owner.to_string();
            assert!(
                !owners.iter().any(|field| field.contains(&name)),
                "{owners:?}"
            );
            let _: () = fixture.raw.del(NAME).await.unwrap();
            completed.inspect(|refused| assert!(refused))
        })
        .await;
}

async fn waiting_until_released<K: LockKind>(make: fn(&Locks) -> Lock<K>) {
    let fixture = Fixture::new(make).await;
    let holder_locks = locks(&fixture.server, LEASE).await;
    fixture
        .cut(async |fixture, polls| {
            // Readers share, so that only a writer makes a reader wait.
            let holder: Box<dyn AnyGuard> = if K::KIND == Kind::Read {
                let both = holder_locks.read_write(NAME);
                Box::new(both.write().acquire().await.unwrap())
            } else {
                Box::new(make(&holder_locks).acquire().await.unwrap())
            };
            let releasing = released_later(holder.release());
            let owner = fixture.locks.owner();
            let got = cut_after(polls, fixture.lock.acquire_as(&owner))
                .await
                .map(Result::unwrap);
            releasing.await.unwrap();
            got
        })
        .await;
}

all_kinds! { try_acquire re_entry release waiting_for_a_held_lock waiting_until_released }

#[tokio::test]
async fn setnx_lock() {
    let (server, _, [locks]) = start(LEASE).await;
    let lock = locks.setnx("lock:setnx:1", Duration::from_secs(60));
    // With the script loaded, what was cut short is executed before what is sent later.
    let becomes_free = async || {
        eventually("it is free", async || match lock.try_acquire().await {
            Ok(Some(held)) => held.release().await.is_ok(),
            _ => false,
        })
        .await;
    };
    becomes_free().await;
    cut_everywhere("acquire", async |polls| {
        let held = cut_after(polls, lock.try_acquire())
            .await
            .map(|got| got.unwrap().unwrap());
        let completed = held.is_some();
        drop(held);
        becomes_free().await;
        nothing_left(&server, &[&locks]).await;
        completed
    })
    .await;
    cut_everywhere("release", async |polls| {
        let held = lock.try_acquire().await.unwrap().unwrap();
        let completed = cut_after(polls, held.release())
            .await
            .map(Result::unwrap)
            .is_some();
        nothing_left(&server, &[&locks]).await;
        completed
    })
    .await;
}
