//! The wait loop and the wake-up registry under a concurrency explorer (shuttle): thousands of
//! interleavings of waiters that wait, are dropped half-way and release, of a subscriber that subscribes
//! and receives, and of a connection that breaks. The server is one here, without Redis: a lock, and
//! one subscription to its channel. No timer ever fires, so a lost wake-up leaves every waiter asleep,
//! and the explorer reports a deadlock.
//!
//! The registry's mutex is the explorer's, and each of its operations a point at which other tasks
//! may run first; tokio's primitives count as one step (tokio explores their inside with loom).

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use shuttle::future::{JoinHandle, block_on, spawn, yield_now};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Mutex;
use shuttle::{check_pct, check_random};
use tokio::sync::Notify;

use super::Waiter;
use crate::commands::Try;
use crate::commands::lock::{UNLOCK_ALL_MESSAGE, UNLOCK_MESSAGE};
use crate::config::LockConfig;
use crate::state::wakeups::{Subscribed, Wakeups};
use crate::stats::KindCounters;
use crate::waiting::patience::Patience;

/// Interleavings of each test, half of them chosen at random, half by priorities (PCT).
const RUNS: usize = 1_000;

/// A lock on a server, and the one subscription to its channel.
struct World {
    wakeups: Arc<Wakeups>,
    channel: Arc<str>,
    server: Mutex<Server>,
    /// Something has happened on the subscriber's connection.
    connection: Notify,
}

#[derive(Default)]
struct Server {
    held: bool,
    /// Whether the subscriber's connection is subscribed.
    subscribed: bool,
    /// Messages on their way to the subscriber.
    messages: usize,
    /// The subscriber's connection is broken.
    broken: bool,
    /// The test is over.
    over: bool,
}

/// The held lock; released when dropped, as the clean-up queue would do.
struct Held(Arc<World>);

impl World {
    /// One acquire command: other tasks may run before it, and before its reply.
    async fn attempt(self: &Arc<Self>) -> Option<Held> {
        yield_now().await;
        let was_held = std::mem::replace(&mut self.server.lock().unwrap().held, true);
        let held = (!was_held).then(|| Held(self.clone()));
        some_time().await;
        held
    }

    fn change(&self, change: impl FnOnce(&mut Server)) {
        change(&mut self.server.lock().unwrap());
        self.connection.notify_one();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // The explorer has ended, and a second panic would hide why.
        if std::thread::panicking() {
            return;
        }
        self.0.change(|server| {
            server.held = false;
            // Delivered only to a subscriber.
            server.messages += usize::from(server.subscribed);
        });
    }
}

/// Acquires the lock.
async fn wait(world: Arc<World>) -> Held {
    let config = LockConfig::default();
    let counters = KindCounters::default();
    let waiter = Waiter {
        wakeups: &world.wakeups,
        config: &config,
        counters: &counters,
    };
    let attempt = || async {
        Ok(world
            .attempt()
            .await
            .map_or(Try::Refused(-1), Try::Acquired))
    };
    let patience = Patience::new(&config, Duration::MAX);
    let held = waiter
        .wait(patience, || world.channel.clone(), attempt)
        .await;
    held.expect("the server answers")
        .expect("there is no limit")
}

/// Stands in for the subscriber task.
async fn run_subscriber(world: Arc<World>) {
    let mut subscribed: HashSet<Arc<str>> = HashSet::new();
    loop {
        let wanted = world.wakeups.channels();
        world
            .wakeups
            .mark(subscribed.intersection(&wanted), Subscribed::Confirmed);
        let new_channels: Vec<_> = wanted.difference(&subscribed).cloned().collect();
        if !new_channels.is_empty() {
            world.server.lock().unwrap().subscribed = true;
            yield_now().await;
            world.wakeups.subscribed(&new_channels);
        } else if subscribed != wanted {
            world.server.lock().unwrap().subscribed = false;
            yield_now().await;
        }
        subscribed = wanted;
        tokio::select! {
            biased;
            () = world.connection.notified() => {}
            () = world.wakeups.changed() => continue,
        }
        let mut server = world.server.lock().unwrap();
        if server.over {
            return;
        }
        let messages = std::mem::take(&mut server.messages);
        let broken = std::mem::take(&mut server.broken);
        drop(server);
        for _ in 0..messages {
            // Now and then the message that wakes every waiter.
            let message = if thread_rng().gen_bool(0.8) {
                UNLOCK_MESSAGE
            } else {
                UNLOCK_ALL_MESSAGE
            };
            world.wakeups.deliver(&world.channel, message.as_bytes());
        }
        if broken {
            world.wakeups.mark(&subscribed, Subscribed::Pending);
            subscribed.clear();
        }
    }
}

/// A waiter that acquires and releases, or one that is dropped after a few polls.
async fn until_dropped(waiting: impl Future<Output = Held>, dropped: bool) {
    let mut polls = if dropped {
        thread_rng().gen_range(1..50)
    } else {
        usize::MAX
    };
    let mut waiting = Box::pin(waiting);
    let held = std::future::poll_fn(|cx| {
        polls -= 1;
        match waiting.as_mut().poll(cx) {
            Poll::Ready(held) => Poll::Ready(Some(held)),
            Poll::Pending if polls == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await;
    yield_now().await;
    drop(held);
    drop(waiting);
}

/// A lock, held at first, `stay` waiters, `drop_half_way` waiters that are dropped
/// half-way, and perhaps a broken connection. Every waiter that stays has to acquire.
fn run([stay, drop_half_way]: [usize; 2], connection_breaks: bool) {
    block_on(async move {
        let world = Arc::new(World {
            wakeups: Arc::default(),
            channel: "channel".into(),
            server: Mutex::default(),
            connection: Notify::new(),
        });
        let held = world.attempt().await.expect("no other task has started");
        let subscriber = spawn(run_subscriber(world.clone()));
        let waiters: Vec<JoinHandle<()>> = (0..stay + drop_half_way)
            .map(|i| spawn(until_dropped(wait(world.clone()), i < drop_half_way)))
            .collect();
        let breaking = connection_breaks.then(|| {
            let world = world.clone();
            spawn(async move {
                some_time().await;
                // The server ends the subscription at once, the subscriber notices later.
                world.change(|server| {
                    server.subscribed = false;
                    server.messages = 0;
                    server.broken = true;
                });
            })
        });
        some_time().await;
        drop(held);
        for waiter in waiters.into_iter().chain(breaking) {
            waiter.await.expect("it ran to its end");
        }
        world.change(|server| server.over = true);
        subscriber.await.expect("it ran to its end");
        assert_eq!(world.wakeups.len(), 0, "a subscription is left");
        assert!(!world.server.lock().unwrap().held, "the lock is still held");
    });
}

/// Any number of steps of other tasks.
async fn some_time() {
    for _ in 0..thread_rng().gen_range(1..20) {
        yield_now().await;
    }
}

/// Explores [`run`].
fn explore(waiters: [usize; 2], connection_breaks: bool) {
    // Timers can be made, and nobody drives them.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let _context = runtime.enter();
    check_random(move || run(waiters, connection_breaks), RUNS / 2);
    check_pct(move || run(waiters, connection_breaks), RUNS / 2, 3);
}

#[test]
fn every_waiter_acquires() {
    explore([3, 0], false);
}

#[test]
fn a_dropped_waiter_loses_no_wakeup() {
    explore([2, 2], false);
}

#[test]
fn a_broken_connection_loses_no_waiter() {
    explore([1, 0], true);
    explore([2, 1], true);
}

/// A waiter whose deadline passes just as it is woken does not try; the next waiter has to.
#[test]
fn an_unused_wakeup_is_passed_on() {
    check_random(wake_with_and_without_a_try, 1);
}

fn wake_with_and_without_a_try() {
    let wakeups: Arc<Wakeups> = Arc::default();
    let channel: Arc<str> = "channel".into();
    let first = wakeups.join(&channel);
    let second = wakeups.join(&channel);
    for used in [true, false] {
        wakeups.deliver(&channel, UNLOCK_MESSAGE.as_bytes());
        block_on(first.message());
        let mut wakeup = first.wakeup();
        if used {
            wakeup.mark_used();
        }
        drop(wakeup);
        assert_eq!(pin!(second.message()).enable(), !used);
    }
}
