//! The waiter table under a concurrency explorer: thousands of interleavings of waiters that wait,
//! quit half-way and give back, of a listener that subscribes and hears, and of a connection that
//! breaks. There are no timers here, so a wake-up that is lost leaves everybody asleep, and the
//! explorer reports a deadlock.
//!
//! The table's mutex is the explorer's, and each of its operations a point at which others may go
//! first; [`Notify`] counts as one step (tokio explores its inside with loom). The waiter and
//! the listener do what `wait` and `listener` do, without Redis.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use shuttle::future::{block_on, spawn, yield_now};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Mutex;
use shuttle::{check_pct, check_random};
use tokio::sync::Notify;

use super::{Topics, UNLOCK_ALL_MESSAGE, Wake};
use crate::commands::UNLOCK_MESSAGE;

/// Interleavings of each test, half of them chosen at random, half by priorities (PCT); and of the
/// tests that look for a flaw, which end as soon as it is found.
const RUNS: usize = 1_500;
const RUNS_FOR_A_FLAW: usize = 10_000;

/// What a waiter does wrong, to see that it is found.
#[derive(Clone, Copy, PartialEq)]
enum Flaw {
    None,
    /// A wake counts as used when it arrives, not when the lock has been looked at.
    UsesWakeTooEarly,
    /// The lock is looked at before the next message is awaited, so that the note of a
    /// resubscription between the two is missed.
    AwaitsTooLate,
}

/// A lock on a server, and the one subscription to its channel.
struct World {
    topics: Arc<Topics>,
    channel: Arc<str>,
    server: Mutex<Server>,
    /// Something has happened on the listener's connection.
    connection: Notify,
}

#[derive(Default)]
struct Server {
    held: bool,
    /// Whether the listener's connection is subscribed.
    subscribed: bool,
    /// Messages on their way to the listener.
    messages: usize,
    /// The listener's connection is broken.
    broken: bool,
    /// The test is over.
    over: bool,
}

/// What is held; given back by dropping, which the janitor would do.
struct Held(Arc<World>);

impl World {
    /// One acquire command: somebody may come before it, and after it before its answer.
    async fn attempt(self: &Arc<Self>) -> Option<Held> {
        yield_now().await;
        let taken = !std::mem::replace(&mut self.server.lock().unwrap().held, true);
        let held = taken.then(|| Held(self.clone()));
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
            // Told only to those who listen.
            server.messages += usize::from(server.subscribed);
        });
    }
}

/// What `wait::Taker::wait` does.
async fn wait(world: &Arc<World>, flaw: Flaw) -> Held {
    if let Some(held) = world.attempt().await {
        return held;
    }
    let subscription = world.topics.join(&world.channel);
    subscription.heard().await;
    let mut wake = Wake::none();
    loop {
        let mut message = pin!(subscription.message());
        if flaw != Flaw::AwaitsTooLate {
            message.as_mut().enable();
        }
        let held = world.attempt().await;
        wake.spend();
        if let Some(held) = held {
            return held;
        }
        if flaw == Flaw::AwaitsTooLate {
            message.set(subscription.message());
        }
        message.await;
        wake = subscription.wake();
        if flaw == Flaw::UsesWakeTooEarly {
            wake.spend();
        }
    }
}

/// A waiter who gets the lock; or one who quits after a few polls, wherever he is by then.
async fn waiter(world: Arc<World>, flaw: Flaw, quits: bool) {
    let mut polls = if quits { thread_rng().gen_range(1..50) } else { usize::MAX };
    let mut waiting = Box::pin(wait(&world, flaw));
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

/// What `listener` does.
async fn listen(world: Arc<World>) {
    let mut have: HashSet<Arc<str>> = HashSet::new();
    loop {
        let wanted = world.topics.channels();
        world.topics.still_heard(have.intersection(&wanted));
        let more: Vec<_> = wanted.difference(&have).cloned().collect();
        if !more.is_empty() {
            world.server.lock().unwrap().subscribed = true;
            yield_now().await;
            world.topics.confirmed(&more);
        } else if have != wanted {
            world.server.lock().unwrap().subscribed = false;
            yield_now().await;
        }
        have = wanted;
        tokio::select! {
            biased;
            () = world.connection.notified() => {}
            () = world.topics.changed() => continue,
        }
        let mut server = world.server.lock().unwrap();
        if server.over {
            return;
        }
        let messages = std::mem::take(&mut server.messages);
        let broken = std::mem::take(&mut server.broken);
        drop(server);
        for _ in 0..messages {
            // Now and then the message that lets everybody look.
            let message =
                if thread_rng().gen_bool(0.8) { UNLOCK_MESSAGE } else { UNLOCK_ALL_MESSAGE };
            world.topics.deliver(&world.channel, message.as_bytes());
        }
        if broken {
            world.topics.silenced(have.iter());
            have.clear();
        }
    }
}

/// A lock that is held, some who wait for it and some who quit, and perhaps a broken connection.
/// Everybody who stays has to get it.
fn run(stay: usize, quit: usize, breaks: bool, flaw: Flaw) {
    block_on(async move {
        let world = Arc::new(World {
            topics: Arc::default(),
            channel: "channel".into(),
            server: Mutex::default(),
            connection: Notify::new(),
        });
        let held = world.attempt().await.expect("nobody else is there yet");
        let listener = spawn(listen(world.clone()));
        let waiters: Vec<_> =
            (0..stay + quit).map(|i| spawn(waiter(world.clone(), flaw, i < quit))).collect();
        let breaking = breaks.then(|| {
            let world = world.clone();
            spawn(async move {
                some_time().await;
                // The server forgets at once, the listener learns of it some time later.
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
        listener.await.expect("it ran to its end");
        assert_eq!(world.topics.len(), 0, "a subscription is left");
    });
}

/// Any number of steps of others.
async fn some_time() {
    for _ in 0..thread_rng().gen_range(1..20) {
        yield_now().await;
    }
}

fn explore(stay: usize, quit: usize, breaks: bool, flaw: Flaw) {
    let runs = if flaw == Flaw::None { RUNS } else { RUNS_FOR_A_FLAW };
    check_random(move || run(stay, quit, breaks, flaw), runs / 2);
    check_pct(move || run(stay, quit, breaks, flaw), runs / 2, 3);
}

#[test]
fn everybody_gets_in() {
    explore(3, 0, false, Flaw::None);
}

#[test]
fn who_quits_takes_no_wake_along() {
    explore(2, 2, false, Flaw::None);
}

#[test]
fn a_broken_connection_loses_nobody() {
    explore(1, 0, true, Flaw::None);
    explore(2, 1, true, Flaw::None);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_wake_that_is_used_too_early_is_found() {
    explore(2, 2, false, Flaw::UsesWakeTooEarly);
}

#[test]
#[should_panic(expected = "deadlock")]
fn awaiting_too_late_is_found() {
    explore(1, 0, true, Flaw::AwaitsTooLate);
}

/// The waiter whose limit ends just as it is woken does not look at the lock; the next one has to.
#[test]
fn an_unspent_wake_is_handed_on() {
    check_random(
        || {
            let topics: Arc<Topics> = Arc::default();
            let channel: Arc<str> = "channel".into();
            let (first, second) = (topics.join(&channel), topics.join(&channel));
            for spent in [true, false] {
                topics.deliver(&channel, UNLOCK_MESSAGE.as_bytes());
                block_on(first.message());
                let mut wake = first.wake();
                if spent {
                    wake.spend();
                }
                drop(wake);
                assert_eq!(pin!(second.message()).enable(), !spent);
            }
        },
        1,
    );
}
