//! What the explorations of waiters under shuttle share: a server with permits and one subscription
//! to their channel, without Redis. There are no timers here, so a lost wake-up leaves every waiter
//! asleep, and the explorer reports a deadlock.
//!
//! The registry's mutex is the explorer's, and each of its operations a point at which other tasks
//! may run first; tokio's primitives count as one step (tokio explores their inside with loom).

use std::collections::HashSet;
use std::sync::Arc;
use std::task::Poll;

use shuttle::future::{JoinHandle, block_on, spawn, yield_now};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Mutex;
use shuttle::{check_pct, check_random};
use tokio::sync::Notify;

use super::wakeups::{Subscribed, Wakeups};
use crate::commands::lock::{UNLOCK_ALL_MESSAGE, UNLOCK_MESSAGE};

/// Interleavings of each test, half of them chosen at random, half by priorities (PCT); and of the
/// tests that plant a bug, which end as soon as it is found.
const RUNS: usize = 1_000;
const RUNS_WITH_A_BUG: usize = 10_000;

/// Permits on a server, and the one subscription to their channel. A lock is one permit.
pub(super) struct World {
    pub wakeups: Arc<Wakeups>,
    pub channel: Arc<str>,
    server: Mutex<Server>,
    /// Something has happened on the subscriber's connection.
    connection: Notify,
}

#[derive(Default)]
struct Server {
    free: usize,
    /// Whether the subscriber's connection is subscribed.
    subscribed: bool,
    /// Messages on their way to the subscriber.
    messages: usize,
    /// The subscriber's connection is broken.
    broken: bool,
    /// The test is over.
    over: bool,
}

/// Held permits; released when dropped, as the clean-up queue would do.
pub(super) struct Held(Arc<World>, usize);

impl World {
    /// One acquire command: other tasks may run before it, and before its reply.
    pub async fn attempt(self: &Arc<Self>, permits: usize) -> Option<Held> {
        yield_now().await;
        let held = self.take(permits).then(|| Held(self.clone(), permits));
        some_time().await;
        held
    }

    fn take(&self, permits: usize) -> bool {
        let mut server = self.server.lock().unwrap();
        let enough = server.free >= permits;
        if enough {
            server.free -= permits;
        }
        enough
    }

    fn change(&self, change: impl FnOnce(&mut Server)) {
        change(&mut self.server.lock().unwrap());
        self.connection.notify_one();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.change(|server| {
            server.free += self.1;
            // One message, however many permits; delivered only to a subscriber.
            server.messages += usize::from(server.subscribed);
        });
    }
}

/// What `subscriber` does.
async fn run_subscriber(world: Arc<World>) {
    let mut subscribed: HashSet<Arc<str>> = HashSet::new();
    loop {
        let wanted = world.wakeups.channels();
        world.wakeups.mark(subscribed.intersection(&wanted), Subscribed::Confirmed);
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
            world.wakeups.mark(&subscribed, Subscribed::Pending);
            subscribed.clear();
        }
    }
}

/// A waiter that acquires and releases, or one that is dropped after a few polls.
async fn until_dropped(waiting: impl Future<Output = Held>, dropped: bool) {
    let mut polls = if dropped { thread_rng().gen_range(1..50) } else { usize::MAX };
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

/// `permits` permits, all held at first, `stay` waiters, `drop_half_way` waiters that are dropped
/// half-way, and perhaps a broken connection. Every waiter that stays has to acquire.
fn run<F>(
    permits: usize,
    [stay, drop_half_way]: [usize; 2],
    connection_breaks: bool,
    wait: impl Fn(Arc<World>) -> F,
) where
    F: Future<Output = Held> + Send + 'static,
{
    block_on(async move {
        let world = Arc::new(World {
            wakeups: Arc::default(),
            channel: "channel".into(),
            server: Mutex::new(Server { free: permits, ..Server::default() }),
            connection: Notify::new(),
        });
        let held = world.attempt(permits).await.expect("no other task has started");
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
        assert_eq!(world.server.lock().unwrap().free, permits, "permits are lost");
    });
}

/// Any number of steps of other tasks.
async fn some_time() {
    for _ in 0..thread_rng().gen_range(1..20) {
        yield_now().await;
    }
}

/// Explores [`run`]: waiters that `wait` as the code does, or with a bug in it, to see that the explorer
/// finds it.
pub(super) fn explore<F>(
    permits: usize,
    waiters: [usize; 2],
    connection_breaks: bool,
    has_a_bug: bool,
    wait: impl Fn(Arc<World>) -> F + Copy + Send + Sync + 'static,
) where
    F: Future<Output = Held> + Send + 'static,
{
    let runs = if has_a_bug { RUNS_WITH_A_BUG } else { RUNS };
    check_random(move || run(permits, waiters, connection_breaks, wait), runs / 2);
    check_pct(move || run(permits, waiters, connection_breaks, wait), runs / 2, 3);
}
