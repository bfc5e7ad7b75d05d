//! The wake-up registry under a concurrency explorer (shuttle): thousands of interleavings of waiters
//! that wait, are dropped half-way and release, of a subscriber that subscribes and receives, and of
//! a connection that breaks. There are no timers here, so a lost wake-up leaves every waiter asleep,
//! and the explorer reports a deadlock.
//!
//! The registry's mutex is the explorer's, and each of its operations a point at which other tasks
//! may run first; [`Notify`] counts as one step (tokio explores its inside with loom). The waiter and
//! the subscriber do what `acquirer` and `subscriber` do, without Redis.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use shuttle::future::{block_on, spawn, yield_now};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Mutex;
use shuttle::{check_pct, check_random};
use tokio::sync::Notify;

use super::{UNLOCK_ALL_MESSAGE, Wakeup, Wakeups};
use crate::commands::lock::UNLOCK_MESSAGE;

/// Interleavings of each test, half of them chosen at random, half by priorities (PCT); and of the
/// tests that plant a bug, which end as soon as it is found.
const RUNS: usize = 1_500;
const RUNS_WITH_A_BUG: usize = 10_000;

/// A bug in the waiter, to see that the explorer finds it.
#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    /// A wake-up is marked used when it arrives, not after the next try.
    MarksUsedTooEarly,
    /// The lock is tried before the next message is awaited, so that a resubscription between the two
    /// is missed.
    AwaitsTooLate,
}

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

/// A held lock; released when dropped, as the clean-up queue would do.
struct Held(Arc<World>);

impl World {
    /// One acquire command: other tasks may run before it, and before its reply.
    async fn attempt(self: &Arc<Self>) -> Option<Held> {
        yield_now().await;
        let acquired = !std::mem::replace(&mut self.server.lock().unwrap().held, true);
        let held = acquired.then(|| Held(self.clone()));
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
        self.0.change(|server| {
            server.held = false;
            // Delivered only to a subscriber.
            server.messages += usize::from(server.subscribed);
        });
    }
}

/// What `Acquirer::wait` does.
async fn wait(world: &Arc<World>, bug: Bug) -> Held {
    if let Some(held) = world.attempt().await {
        return held;
    }
    let subscription = world.wakeups.join(&world.channel);
    subscription.confirmed().await;
    let mut wakeup = Wakeup::none();
    loop {
        let mut message = pin!(subscription.message());
        if bug != Bug::AwaitsTooLate {
            message.as_mut().enable();
        }
        let held = world.attempt().await;
        wakeup.mark_used();
        if let Some(held) = held {
            return held;
        }
        if bug == Bug::AwaitsTooLate {
            message.set(subscription.message());
        }
        message.await;
        wakeup = subscription.wakeup();
        if bug == Bug::MarksUsedTooEarly {
            wakeup.mark_used();
        }
    }
}

/// A waiter that acquires the lock, or one that is dropped after a few polls.
async fn waiter(world: Arc<World>, bug: Bug, dropped: bool) {
    let mut polls = if dropped { thread_rng().gen_range(1..50) } else { usize::MAX };
    let mut waiting = Box::pin(wait(&world, bug));
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

/// What `subscriber` does.
async fn run_subscriber(world: Arc<World>) {
    let mut subscribed: HashSet<Arc<str>> = HashSet::new();
    loop {
        let wanted = world.wakeups.channels();
        world.wakeups.still_subscribed(subscribed.intersection(&wanted));
        let more: Vec<_> = wanted.difference(&subscribed).cloned().collect();
        if !more.is_empty() {
            world.server.lock().unwrap().subscribed = true;
            yield_now().await;
            world.wakeups.subscribed(&more);
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
            let message =
                if thread_rng().gen_bool(0.8) { UNLOCK_MESSAGE } else { UNLOCK_ALL_MESSAGE };
            world.wakeups.deliver(&world.channel, message.as_bytes());
        }
        if broken {
            world.wakeups.unsubscribed(subscribed.iter());
            subscribed.clear();
        }
    }
}

/// A held lock, `stay` waiters, `drop_half_way` waiters that are dropped half-way, and perhaps a broken
/// connection. Every waiter that stays has to acquire the lock.
fn run(stay: usize, drop_half_way: usize, connection_breaks: bool, bug: Bug) {
    block_on(async move {
        let world = Arc::new(World {
            wakeups: Arc::default(),
            channel: "channel".into(),
            server: Mutex::default(),
            connection: Notify::new(),
        });
        let held = world.attempt().await.expect("no other task has started");
        let subscriber = spawn(run_subscriber(world.clone()));
        let waiters: Vec<_> = (0..stay + drop_half_way)
            .map(|i| spawn(waiter(world.clone(), bug, i < drop_half_way)))
            .collect();
        let breaking = connection_breaks.then(|| {
            let world = world.clone();
            spawn(async move {
                some_time().await;
                // The server ends the subscription at once, the subscriber notices later.
                world.change(|server| {
                    (server.subscribed, server.messages, server.broken) = (false, 0, true);
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
    });
}

/// Any number of steps of other tasks.
async fn some_time() {
    for _ in 0..thread_rng().gen_range(1..20) {
        yield_now().await;
    }
}

fn explore(stay: usize, drop_half_way: usize, connection_breaks: bool, bug: Bug) {
    let runs = if bug == Bug::None { RUNS } else { RUNS_WITH_A_BUG };
    check_random(move || run(stay, drop_half_way, connection_breaks, bug), runs / 2);
    check_pct(move || run(stay, drop_half_way, connection_breaks, bug), runs / 2, 3);
}

#[test]
fn every_waiter_acquires() {
    explore(3, 0, false, Bug::None);
}

#[test]
fn a_dropped_waiter_loses_no_wakeup() {
    explore(2, 2, false, Bug::None);
}

#[test]
fn a_broken_connection_loses_no_waiter() {
    explore(1, 0, true, Bug::None);
    explore(2, 1, true, Bug::None);
}

#[test]
#[should_panic(expected = "deadlock")]
fn marking_a_wakeup_used_too_early_is_found() {
    explore(2, 2, false, Bug::MarksUsedTooEarly);
}

#[test]
#[should_panic(expected = "deadlock")]
fn awaiting_too_late_is_found() {
    explore(1, 0, true, Bug::AwaitsTooLate);
}

/// A waiter whose deadline passes just as it is woken does not try; the next waiter has to.
#[test]
fn an_unused_wakeup_is_passed_on() {
    check_random(
        || {
            let wakeups: Arc<Wakeups> = Arc::default();
            let channel: Arc<str> = "channel".into();
            let (first, second) = (wakeups.join(&channel), wakeups.join(&channel));
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
        },
        1,
    );
}
