//! The fair lock: wire format of its queue, first-in first-out order, and waiters that give up, die,
//! or belong to another client library.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use redisson_lock::{Error, FairLock, LockConfig, Locks, Owner};
use tokio::task::JoinHandle;

use super::{
    LONG_LEASE, calls_of, connected, eventually, locks, messages, nothing_left, query, soon, start,
    start_behind_proxy, wait_for,
};
use testkit::proxy::Mode;
use testkit::redis_server::RedisServer;

pub(super) const NAME: &str = "printer";
pub(super) const QUEUE: &str = "redisson_lock_queue:{printer}";
pub(super) const TIMES: &str = "redisson_lock_timeout:{printer}";
const ALIVE: &str = "lock_waiters_alive:{printer}";
/// Redisson's timeout per waiter in the queue, in ms (`threadWaitTime`).
const WAITER_TIMEOUT: f64 = 300_000.0;

/// A fair lock, and waiters of this library in its queue. Each acquires, notes that, and releases.
struct Printer {
    server: RedisServer,
    raw: MultiplexedConnection,
    locks: Locks,
    lock: FairLock,
    waiters: Vec<JoinHandle<()>>,
    /// The waiters that have acquired the lock, in this order.
    acquired: Arc<Mutex<Vec<Owner>>>,
}

impl Printer {
    async fn new(lease: Duration) -> Self {
        let (server, raw, [locks]) = start(lease).await;
        let lock = locks.fair(NAME);
        Self {
            server,
            raw,
            locks,
            lock,
            waiters: Vec::new(),
            acquired: Arc::default(),
        }
    }

    /// A new owner waits; returns when it is queued and subscribed.
    async fn join(&mut self) -> Owner {
        let owner = self.locks.owner();
        self.join_as(owner).await;
        owner
    }

    async fn join_as(&mut self, owner: Owner) {
        let before = self.queue().await.len();
        let lock = self.lock.clone();
        let acquired = self.acquired.clone();
        self.waiters.push(tokio::spawn(async move {
            let guard = lock.acquire_as(&owner).await.unwrap();
            acquired.lock().unwrap().push(owner);
            guard.release().await.unwrap();
        }));
        self.queued(before + 1).await;
    }

    /// Queues a waiter of another client library that times out after `alive` ms.
    async fn join_foreign(&mut self, owner: &str, alive: f64) {
        let until = self.now().await + alive;
        let _: () = self.raw.rpush(QUEUE, owner).await.unwrap();
        let _: () = self.raw.zadd(TIMES, owner, until).await.unwrap();
    }

    async fn queued(&mut self, count: usize) {
        queued(&mut self.raw, QUEUE, count).await;
    }

    /// The owners in the queue, in order.
    async fn queue(&mut self) -> Vec<String> {
        self.raw.lrange(QUEUE, 0, -1).await.unwrap()
    }

    /// The time until Redisson considers `owner` dead, in ms from now.
    async fn timeout_of(&mut self, owner: impl ToString) -> f64 {
        let score: f64 = self.raw.zscore(TIMES, owner.to_string()).await.unwrap();
        score - self.now().await
    }

    /// The server's clock in ms.
    async fn now(&mut self) -> f64 {
        let (seconds, micros): (f64, f64) = query(&mut self.raw, "TIME", &[]).await;
        seconds * 1000.0 + (micros / 1000.0).floor()
    }

    /// Waits until all waiters have acquired the lock, in this order, and nothing is left.
    async fn all_acquire(self, expected: &[Owner]) {
        for waiter in self.waiters {
            soon("it acquires the lock", waiter).await.unwrap();
        }
        assert_eq!(*self.acquired.lock().unwrap(), expected);
        nothing_left(&self.server, &[&self.locks]).await;
    }
}

/// Waits until this queue has `count` waiters, and each of them has subscribed to its channel. Waiters called `another:…` are
/// only entries that a test has written: they subscribe to nothing.
pub(super) async fn queued(raw: &mut MultiplexedConnection, queue: &str, count: usize) {
    eventually("they are queued and subscribed", async || {
        let channels: Vec<String> = query(raw, "PUBSUB", &["CHANNELS"]).await;
        let owners: Vec<String> = raw.lrange(queue, 0, -1).await.unwrap();
        let foreign = owners
            .iter()
            .filter(|owner| owner.starts_with("another:"))
            .count();
        owners.len() == count && channels.len() + foreign == count
    })
    .await;
}

fn channel(owner: Owner) -> String {
    format!("redisson_lock__channel:{{printer}}:{owner}")
}

#[tokio::test]
async fn the_wire_format_is_that_of_redisson() {
    let mut printer = Printer::new(LONG_LEASE).await;
    let lock = printer.lock.clone();
    let owner = printer.locks.owner();
    let guard = lock.acquire_as(&owner).await.unwrap();
    let hash: Vec<(String, String)> = printer.raw.hgetall(NAME).await.unwrap();
    assert_eq!(hash, [(owner.to_string(), "1".to_owned())]);
    let keys: Vec<String> = query(&mut printer.raw, "KEYS", &["*"]).await;
    assert_eq!(keys, [NAME], "without waiters it is the lock alone");
    // An attempt without waiting does not enter the queue.
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert!(lock.acquire_within(Duration::ZERO).await.unwrap().is_none());
    assert!(printer.queue().await.is_empty());

    let second = printer.join().await;
    let third = printer.join().await;
    assert_eq!(
        printer.queue().await,
        [second.to_string(), third.to_string()]
    );
    // The holder's lease, and five minutes for each position in the queue.
    let second_timeout = printer.timeout_of(second).await;
    assert!(
        (WAITER_TIMEOUT..=WAITER_TIMEOUT + 120_000.0).contains(&second_timeout),
        "{second_timeout}"
    );
    let distance = printer.timeout_of(third).await - second_timeout;
    assert!((distance - WAITER_TIMEOUT).abs() < 120_000.0, "{distance}");
    let mut channels: Vec<String> = query(&mut printer.raw, "PUBSUB", &["CHANNELS"]).await;
    channels.sort();
    let mut expected = [second, third].map(channel);
    expected.sort();
    assert_eq!(channels, expected);

    // A release notifies the first waiter only.
    let mut messages = messages(&printer.server, "*").await;
    guard.release().await.unwrap();
    for notified in [second, third] {
        let message = soon("a message", messages.next()).await.unwrap();
        assert_eq!(message.get_channel_name(), channel(notified));
        assert_eq!(message.get_payload_bytes(), b"0");
    }
    for waiter in printer.waiters.drain(..) {
        soon("it acquires the lock", waiter).await.unwrap();
    }
    // Without waiters no message is published.
    lock.acquire_as(&owner)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let _: i64 = printer.raw.publish("the end", "").await.unwrap();
    let message = soon("a message", messages.next()).await.unwrap();
    assert_eq!(message.get_channel_name(), "the end");
    drop(messages);
    printer.all_acquire(&[second, third]).await;
}

/// The head leaves the queue when it acquires. The waiter behind it keeps its place, in front of waiters
/// that come later.
#[tokio::test]
async fn a_successor_keeps_its_place_when_the_head_acquires() {
    let mut printer = Printer::new(LONG_LEASE).await;
    let holder = printer.lock.acquire().await.unwrap();
    let head = wait_for(&printer.lock);
    printer.queued(1).await;
    let second = printer.join().await;
    let timeout_behind_head = printer.timeout_of(second).await;
    holder.release().await.unwrap();
    let held = soon("the head acquires", head).await.unwrap();
    printer.queued(1).await;
    assert_eq!(printer.queue().await, [second.to_string()]);
    // By its timeout, which is what Redisson reads, it is one position further to the front, too.
    let decrease = timeout_behind_head - printer.timeout_of(second).await;
    assert!((decrease - WAITER_TIMEOUT).abs() < 120_000.0, "{decrease}");
    let third = printer.join().await;
    assert_eq!(
        printer.queue().await,
        [second.to_string(), third.to_string()]
    );
    held.release().await.unwrap();
    printer.all_acquire(&[second, third]).await;
}

#[tokio::test]
async fn a_queued_waiter_is_not_overtaken() {
    let mut printer = Printer::new(LONG_LEASE).await;
    let lock = printer.lock.clone();
    let owner = printer.locks.owner();
    // The lock is free, and another client's waiter has just been notified.
    printer.join_foreign("another:1", 60_000.0).await;
    assert!(lock.try_acquire_as(&owner).await.unwrap().is_none());
    assert!(
        lock.acquire_within_as(&owner, Duration::from_millis(400))
            .await
            .unwrap()
            .is_none()
    );
    eventually("it has left", async || {
        printer.queue().await == ["another:1"]
    })
    .await;

    // The other client's waiter acquires and releases, as Redisson does. Together, the two have this effect: it has left the
    // queue, the timeout of the waiter behind it is one position less, and that waiter is notified.
    printer.join_as(owner).await;
    let mut release = redis::pipe();
    release.atomic().lpop(QUEUE, None).zrem(TIMES, "another:1");
    release
        .zincr(TIMES, owner.to_string(), -WAITER_TIMEOUT)
        .publish(channel(owner), "0");
    let _: () = release
        .ignore()
        .query_async(&mut printer.raw)
        .await
        .unwrap();
    printer.all_acquire(&[owner]).await;
}

#[tokio::test]
async fn a_dead_waiter_of_another_client_is_removed() {
    let mut printer = Printer::new(LONG_LEASE).await;
    printer.join_foreign("dead:1", -1.0).await;
    printer.join_foreign("dead:2", -1.0).await;
    let _: () = printer.raw.rpush(QUEUE, "without a time:3").await.unwrap();
    let guard = printer
        .lock
        .try_acquire()
        .await
        .unwrap()
        .expect("no live waiter is queued");
    printer.join_foreign("dead:4", 50.0).await;
    printer.join_foreign("alive:5", 60_000.0).await;
    let mut messages = messages(&printer.server, "*").await;
    tokio::time::sleep(Duration::from_millis(60)).await;
    guard.release().await.unwrap();
    let message = soon("a message", messages.next()).await.unwrap();
    assert_eq!(
        message.get_channel_name(),
        "redisson_lock__channel:{printer}:alive:5"
    );
    assert_eq!(printer.queue().await, ["alive:5"]);
}

/// A waiter whose process dies when the runtime is shut down: none of its clean-up runs.
fn waiter_in_its_own_runtime(server: &RedisServer, lease: Duration) -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let client = server.client();
    runtime.spawn(async move {
        let config = LockConfig::default().with_lease(lease);
        let locks = connected(client, config).await.unwrap();
        let guard = locks.fair(NAME).acquire().await.unwrap();
        panic!("it acquired the lock: {guard:?}");
    });
    runtime
}

#[tokio::test]
async fn a_dead_waiter_is_removed_within_a_lease() {
    let lease = Duration::from_secs(3);
    let mut printer = Printer::new(lease).await;
    let guard = printer.lock.acquire().await.unwrap();
    let process = waiter_in_its_own_runtime(&printer.server, lease);
    printer.queued(1).await;
    let owner = printer.join().await;
    process.shutdown_background();
    guard.release().await.unwrap();
    // The dead waiter counts as alive for a lease, and the next one tries every third of a lease. For a waiter of
    // Redisson it would take five minutes.
    printer.all_acquire(&[owner]).await;
}

/// With no other waiter in the queue, no command looks for dead waiters until somebody tries to acquire.
#[tokio::test]
async fn a_dead_waiter_is_removed_also_when_it_was_the_only_one() {
    let mut printer = Printer::new(LONG_LEASE).await;
    let lease = Duration::from_millis(300);
    let guard = printer.lock.acquire().await.unwrap();
    let process = waiter_in_its_own_runtime(&printer.server, lease);
    printer.queued(1).await;
    process.shutdown_background();
    tokio::time::sleep(lease * 3).await;
    let queue_length = printer.queue().await.len();
    assert_eq!(
        queue_length, 1,
        "it left the queue by itself, so this test shows nothing"
    );
    guard.release().await.unwrap();
    let next = printer
        .lock
        .acquire_within(Duration::from_secs(5))
        .await
        .unwrap();
    next.expect("the dead waiter still blocks the lock")
        .release()
        .await
        .unwrap();
    printer.all_acquire(&[]).await;
}

#[tokio::test]
async fn live_waiters_keep_their_positions_for_any_time() {
    // With a shorter lease a live waiter on a busy machine could pass for dead.
    let mut printer = Printer::new(Duration::from_secs(2)).await;
    let guard = printer.lock.acquire().await.unwrap();
    let both = [printer.join().await, printer.join().await];
    // Each release by another client takes a waiter timeout off. After three of them Redisson would consider both dead.
    for owner in both {
        let owner = owner.to_string();
        let _: f64 = printer
            .raw
            .zincr(TIMES, owner, -3.0 * WAITER_TIMEOUT)
            .await
            .unwrap();
    }
    let before = calls_of(&mut printer.raw, "evalsha").await;
    eventually("each has tried some four times", async || {
        assert_eq!(printer.queue().await, both.map(|owner| owner.to_string()));
        calls_of(&mut printer.raw, "evalsha").await >= before + 8
    })
    .await;
    assert!(printer.timeout_of(both[0]).await > WAITER_TIMEOUT / 2.0);
    assert!(printer.timeout_of(both[1]).await > WAITER_TIMEOUT);
    guard.release().await.unwrap();
    printer.all_acquire(&both).await;
}

#[tokio::test]
async fn a_cancelled_waiter_leaves_the_queue_at_once() {
    let mut printer = Printer::new(LONG_LEASE).await;
    let guard = printer.lock.acquire().await.unwrap();
    printer.join().await;
    printer
        .join_foreign("another:1", 3.0 * WAITER_TIMEOUT)
        .await;
    let owner = printer.join().await;
    let timeout_behind_cancelled = printer.timeout_of("another:1").await;
    printer.waiters.remove(0).abort();
    let expected = ["another:1".to_owned(), owner.to_string()];
    eventually("it has left", async || printer.queue().await == expected).await;
    let decrease = timeout_behind_cancelled - printer.timeout_of("another:1").await;
    assert!((decrease - WAITER_TIMEOUT).abs() < 20_000.0, "{decrease}");
    let alive: Vec<String> = printer.raw.zrange(ALIVE, 0, -1).await.unwrap();
    assert_eq!(alive, [owner.to_string()]);

    // The lock becomes free while the other client's waiter is first. That one gives up and notifies nobody, as
    // Redisson does. Our waiter would find out by its timer; the test publishes a message so as not to wait for it.
    guard.release().await.unwrap();
    let _: () = printer.raw.lrem(QUEUE, 0, "another:1").await.unwrap();
    let _: () = printer.raw.zrem(TIMES, "another:1").await.unwrap();
    let _: i64 = printer.raw.publish(channel(owner), "0").await.unwrap();
    printer.all_acquire(&[owner]).await;
}

/// A waiter is cancelled after the lock became free for it and before it has tried: it has to notify the next.
#[tokio::test]
async fn a_cancelled_first_waiter_notifies_the_next() {
    let mut printer = Printer::new(LONG_LEASE).await;
    let _: () = printer.raw.hset(NAME, "another:1", 1).await.unwrap();
    let _: bool = printer.raw.pexpire(NAME, 60_000).await.unwrap();
    printer.join().await;
    let next = printer.join().await;
    // The lock is free now. The first waiter does not know, since nothing is published: it cannot try before it is cancelled.
    let _: () = printer.raw.del(NAME).await.unwrap();
    printer.waiters.remove(0).abort();
    // The next waiter was notified: its timer would be too late for this.
    printer.all_acquire(&[next]).await;
}

#[tokio::test]
async fn calls_of_one_owner_share_a_queue_position() {
    let mut printer = Printer::new(LONG_LEASE).await;
    let lock = printer.lock.clone();
    let guard = lock.acquire().await.unwrap();
    let both = [printer.join().await, printer.join().await];
    // A second call of the same owner times out; the first keeps the position in the queue.
    let again = lock
        .acquire_within_as(&both[0], Duration::from_millis(400))
        .await;
    assert!(again.unwrap().is_none());
    // The limit of the second call has passed by the server's clock, too. Any attempt removes the waiters that count as dead:
    // this owner must not be one of them.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert_eq!(printer.queue().await[0], both[0].to_string());
    // An owner keeps its place also when it is late with its next attempt, so that it counts as dead, but nobody has removed
    // it yet.
    let _: () = printer
        .raw
        .zadd(ALIVE, both[0].to_string(), 1)
        .await
        .unwrap();
    let again = lock
        .acquire_within_as(&both[0], Duration::from_millis(400))
        .await;
    assert!(again.unwrap().is_none());
    assert_eq!(printer.queue().await[0], both[0].to_string());
    let alive_until = printer.now().await + 60_000.0;
    let _: () = printer
        .raw
        .zadd(ALIVE, both[0].to_string(), alive_until)
        .await
        .unwrap();
    guard.release().await.unwrap();
    printer.all_acquire(&both).await;
}

#[tokio::test]
async fn a_force_unlock_notifies_the_first_waiter() {
    let mut printer = Printer::new(LONG_LEASE).await;
    let guard = printer.lock.acquire().await.unwrap();
    let waiter = printer.join().await;
    assert!(printer.lock.force_unlock().await.unwrap());
    soon("it acquires the lock", printer.waiters.remove(0))
        .await
        .unwrap();
    drop(guard);
    printer.all_acquire(&[waiter]).await;
}

#[tokio::test]
async fn waiters_acquire_after_the_server_lost_its_data() {
    let mut printer = Printer::new(Duration::from_secs(2)).await;
    let guard = printer.lock.acquire().await.unwrap();
    for _ in 0..3 {
        printer.join().await;
    }
    let _: () = query(&mut printer.raw, "FLUSHALL", &[]).await;
    for waiter in printer.waiters {
        soon("each acquires the lock", waiter).await.unwrap();
    }
    assert_eq!(printer.acquired.lock().unwrap().len(), 3);
    drop(guard);
    nothing_left(&printer.server, &[&printer.locks]).await;
}

/// The limit of a waiter. Without one a waiter counts as alive for a lease, which is 30 s and far longer.
const LIMIT: Duration = Duration::from_millis(500);

#[tokio::test]
async fn a_waiter_that_gave_up_is_in_nobodys_way_though_it_cannot_leave() {
    let (server, proxy, behind_proxy) = start_behind_proxy(LockConfig::default()).await;
    let mut raw = server.conn().await;
    let direct = locks(&server, LONG_LEASE).await;
    let holder = direct.fair(NAME).acquire().await.unwrap();

    let lock = behind_proxy.fair(NAME);
    let owner = behind_proxy.owner();
    let waiting = tokio::spawn(async move { lock.acquire_within_as(&owner, LIMIT).await });
    eventually("it is queued", async || {
        raw.llen::<_, usize>(QUEUE).await.unwrap() == 1
    })
    .await;
    // From now on it cannot tell the queue that it leaves.
    proxy.set(Mode::Hang);
    let has_given_up = soon("its limit", waiting)
        .await
        .unwrap()
        .map(|guard| guard.is_none());
    assert!(
        matches!(has_given_up, Ok(true) | Err(Error::Unavailable { .. })),
        "{has_given_up:?}"
    );

    holder.release().await.unwrap();
    let next = direct.owner();
    eventually("another acquires the free lock", async || {
        direct
            .fair(NAME)
            .try_acquire_as(&next)
            .await
            .unwrap()
            .is_some()
    })
    .await;
}
