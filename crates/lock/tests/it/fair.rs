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
    LONG_LEASE, calls_of, eventually, locks, nothing_left, query, soon, start, start_behind_proxy,
    wait_for,
};
use testkit::proxy::Mode;
use testkit::redis_server::RedisServer;

const NAME: &str = "printer";
const QUEUE: &str = "redisson_lock_queue:{printer}";
const TIMES: &str = "redisson_lock_timeout:{printer}";
const ALIVE: &str = "lock_waiters_alive:{printer}";
/// Redisson's timeout per waiter in the queue, in ms (`threadWaitTime`).
const WAITER_TIMEOUT: f64 = 300_000.0;

/// The owners in the queue, in order.
async fn queue(raw: &mut MultiplexedConnection) -> Vec<String> {
    raw.lrange(QUEUE, 0, -1).await.unwrap()
}

/// The time until Redisson considers `owner` dead, in ms from now.
async fn timeout_in(raw: &mut MultiplexedConnection, owner: &str) -> f64 {
    let score: f64 = raw.zscore(TIMES, owner).await.unwrap();
    score - now(raw).await
}

/// The server's clock in ms.
async fn now(raw: &mut MultiplexedConnection) -> f64 {
    let (seconds, micros): (f64, f64) = query(raw, "TIME", &[]).await;
    seconds * 1000.0 + (micros / 1000.0).floor()
}

/// Waits until the queue has `count` waiters, and each of this library has subscribed to its channel.
async fn queued(raw: &mut MultiplexedConnection, count: usize) {
    eventually("they are queued and subscribed", async || {
        let channels: Vec<String> = query(raw, "PUBSUB", &["CHANNELS"]).await;
        let queue = queue(raw).await;
        let foreign = queue.iter().filter(|owner| owner.starts_with("another:")).count();
        queue.len() == count && channels.len() + foreign == count
    })
    .await;
}

/// Starts a task that acquires the lock, appends its owner to `order`, and releases the lock.
fn spawn_waiter(lock: FairLock, owner: Owner, order: &Arc<Mutex<Vec<Owner>>>) -> JoinHandle<()> {
    let order = order.clone();
    tokio::spawn(async move {
        let guard = lock.acquire_as(&owner).await.unwrap();
        order.lock().unwrap().push(owner);
        guard.release().await.unwrap();
    })
}

/// Queues a waiter of another client library that times out after `alive` ms.
async fn foreign_waiter(raw: &mut MultiplexedConnection, owner: &str, alive: f64) {
    let until = now(raw).await + alive;
    let _: () = raw.rpush(QUEUE, owner).await.unwrap();
    let _: () = raw.zadd(TIMES, owner, until).await.unwrap();
}

#[tokio::test]
async fn the_wire_format_is_that_of_redisson() {
    let (server, mut raw, [locks]) = start(LONG_LEASE).await;
    let lock = locks.fair(NAME);
    let (owner, second, third) = (locks.owner(), locks.owner(), locks.owner());

    let guard = lock.acquire_as(&owner).await.unwrap();
    let hash: Vec<(String, String)> = raw.hgetall(NAME).await.unwrap();
    assert_eq!(hash, [(owner.to_string(), "1".to_owned())]);
    let keys: Vec<String> = query(&mut raw, "KEYS", &["*"]).await;
    assert_eq!(keys, [NAME], "without waiters it is the lock alone");
    // An attempt without waiting does not enter the queue.
    assert!(lock.try_acquire_as(&second).await.unwrap().is_none());
    assert!(lock.acquire_within_as(&second, Duration::ZERO).await.unwrap().is_none());
    assert!(queue(&mut raw).await.is_empty());

    let order = Arc::default();
    let waiting = spawn_waiter(lock.clone(), second, &order);
    queued(&mut raw, 1).await;
    let last = spawn_waiter(lock.clone(), third, &order);
    queued(&mut raw, 2).await;
    assert_eq!(queue(&mut raw).await, [second.to_string(), third.to_string()]);
    // The holder's lease, and five minutes for each position in the queue.
    let first = timeout_in(&mut raw, &second.to_string()).await;
    assert!((WAITER_TIMEOUT..=WAITER_TIMEOUT + 120_000.0).contains(&first), "{first}");
    let behind = timeout_in(&mut raw, &third.to_string()).await - first;
    assert!((behind - WAITER_TIMEOUT).abs() < 120_000.0, "{behind}");
    let mut channels: Vec<String> = query(&mut raw, "PUBSUB", &["CHANNELS"]).await;
    channels.sort();
    let mut expected = [second, third].map(|o| format!("redisson_lock__channel:{{printer}}:{o}"));
    expected.sort();
    assert_eq!(channels, expected);

    // A release notifies the first waiter only.
    let (mut sink, mut messages) = server.client().get_async_pubsub().await.unwrap().split();
    sink.psubscribe("*").await.unwrap();
    guard.release().await.unwrap();
    for expected in [second, third] {
        let message = soon("a message", messages.next()).await.unwrap();
        let channel = format!("redisson_lock__channel:{{printer}}:{expected}");
        assert_eq!(
            (message.get_channel_name(), message.get_payload_bytes()),
            (&*channel, &b"0"[..])
        );
    }
    soon("both acquire the lock", async { (waiting.await.unwrap(), last.await.unwrap()) }).await;
    assert_eq!(*order.lock().unwrap(), [second, third]);
    // Without waiters no message is published.
    lock.acquire_as(&owner).await.unwrap().release().await.unwrap();
    let _: i64 = raw.publish("the end", "").await.unwrap();
    let message = soon("a message", messages.next()).await.unwrap();
    assert_eq!(message.get_channel_name(), "the end");
    drop((sink, messages));
    nothing_left(&server, &[&locks]).await;
}

/// The head leaves the queue when it acquires; who is behind it keeps its place, in front of who comes
/// later.
#[tokio::test]
async fn a_successor_keeps_its_place_when_the_head_acquires() {
    let (server, mut raw, [locks]) = start(LONG_LEASE).await;
    let lock = locks.fair(NAME);
    let holder = lock.acquire().await.unwrap();
    let head = wait_for(&lock);
    queued(&mut raw, 1).await;
    let order = Arc::default();
    let (second, third) = (locks.owner(), locks.owner());
    let successor = spawn_waiter(lock.clone(), second, &order);
    queued(&mut raw, 2).await;
    let behind = timeout_in(&mut raw, &second.to_string()).await;
    holder.release().await.unwrap();
    let held = soon("the head acquires", head).await.unwrap();
    queued(&mut raw, 1).await;
    assert_eq!(queue(&mut raw).await, [second.to_string()]);
    // It is one position further to the front, for Redisson too.
    let nearer = behind - timeout_in(&mut raw, &second.to_string()).await;
    assert!((nearer - WAITER_TIMEOUT).abs() < 120_000.0, "{nearer}");
    let latecomer = spawn_waiter(lock, third, &order);
    queued(&mut raw, 2).await;
    assert_eq!(queue(&mut raw).await, [second.to_string(), third.to_string()]);
    held.release().await.unwrap();
    soon("both acquire", async { (successor.await.unwrap(), latecomer.await.unwrap()) }).await;
    assert_eq!(*order.lock().unwrap(), [second, third]);
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn a_queued_waiter_is_not_overtaken() {
    let (server, mut raw, [locks]) = start(LONG_LEASE).await;
    let lock = locks.fair(NAME);
    // The lock is free, and another client's waiter has just been notified.
    foreign_waiter(&mut raw, "another:1", 60_000.0).await;
    let owner = locks.owner();
    assert!(lock.try_acquire_as(&owner).await.unwrap().is_none());
    assert!(lock.acquire_within_as(&owner, Duration::from_millis(400)).await.unwrap().is_none());
    eventually("it has left", async || queue(&mut raw).await == ["another:1"]).await;

    // It acquires, and releases as Redisson does: the first waiter is notified.
    let waiting = spawn_waiter(lock.clone(), owner, &Arc::default());
    queued(&mut raw, 2).await;
    let channel = format!("redisson_lock__channel:{{printer}}:{owner}");
    let mut release = redis::pipe();
    release.atomic().lpop(QUEUE, None).zrem(TIMES, "another:1");
    release.zincr(TIMES, owner.to_string(), -WAITER_TIMEOUT).publish(&channel, "0");
    let _: () = release.ignore().query_async(&mut raw).await.unwrap();
    soon("it acquires the lock", waiting).await.unwrap();
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn a_dead_waiter_of_another_client_is_removed() {
    let (server, mut raw, [locks]) = start(LONG_LEASE).await;
    let lock = locks.fair(NAME);
    foreign_waiter(&mut raw, "dead:1", -1.0).await;
    foreign_waiter(&mut raw, "dead:2", -1.0).await;
    let _: () = raw.rpush(QUEUE, "without a time:3").await.unwrap();
    let guard = lock.try_acquire().await.unwrap().expect("no live waiter is queued");
    foreign_waiter(&mut raw, "dead:4", 50.0).await;
    foreign_waiter(&mut raw, "alive:5", 60_000.0).await;
    let (mut sink, mut messages) = server.client().get_async_pubsub().await.unwrap().split();
    sink.psubscribe("*").await.unwrap();
    tokio::time::sleep(Duration::from_millis(60)).await;
    guard.release().await.unwrap();
    let message = soon("a message", messages.next()).await.unwrap();
    assert_eq!(message.get_channel_name(), "redisson_lock__channel:{printer}:alive:5");
    assert_eq!(queue(&mut raw).await, ["alive:5"]);
}

/// A waiter whose process dies when the runtime is shut down: none of its clean-up runs.
fn waiter_in_its_own_runtime(server: &RedisServer, lease: Duration) -> tokio::runtime::Runtime {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let client = server.client();
    runtime.spawn(async move {
        let config = LockConfig::default().with_lease(lease);
        let locks = Locks::connect(client, config).await.unwrap();
        let guard = locks.fair(NAME).acquire().await.unwrap();
        panic!("it acquired the lock: {guard:?}");
    });
    runtime
}

#[tokio::test]
async fn a_dead_waiter_is_removed_within_a_lease() {
    let lease = Duration::from_secs(3);
    let (server, mut raw, [locks]) = start(lease).await;
    let lock = locks.fair(NAME);
    let guard = lock.acquire().await.unwrap();
    let process = waiter_in_its_own_runtime(&server, lease);
    queued(&mut raw, 1).await;
    let owner = locks.owner();
    let waiting = spawn_waiter(lock.clone(), owner, &Arc::default());
    queued(&mut raw, 2).await;
    process.shutdown_background();
    let dead = queue(&mut raw).await[0].clone();
    guard.release().await.unwrap();
    // A lease, and a third until the next waiter's attempt; not the five minutes of Redisson.
    soon("the dead waiter is removed", waiting).await.unwrap();
    assert!(!queue(&mut raw).await.contains(&dead));
    nothing_left(&server, &[&locks]).await;
}

/// With no other waiter, no command updates the timeouts in the queue until the next attempt.
#[tokio::test]
async fn a_dead_waiter_is_removed_also_when_it_was_the_only_one() {
    let (server, mut raw, [locks]) = start(LONG_LEASE).await;
    let lease = Duration::from_millis(300);
    let lock = locks.fair(NAME);
    let guard = lock.acquire().await.unwrap();
    let process = waiter_in_its_own_runtime(&server, lease);
    queued(&mut raw, 1).await;
    process.shutdown_background();
    tokio::time::sleep(lease * 3).await;
    assert_eq!(
        queue(&mut raw).await.len(),
        1,
        "it left the queue by itself, so this test shows nothing"
    );
    guard.release().await.unwrap();
    let next = lock.acquire_within(Duration::from_secs(5)).await.unwrap();
    next.expect("the dead waiter still blocks the lock").release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn live_waiters_keep_their_positions_for_any_time() {
    // With a shorter lease a live waiter on a busy machine could pass for dead.
    let (server, mut raw, [locks]) = start(Duration::from_secs(2)).await;
    let lock = locks.fair(NAME);
    let guard = lock.acquire().await.unwrap();
    let order = Arc::default();
    let (first, second) = (locks.owner(), locks.owner());
    let one = spawn_waiter(lock.clone(), first, &order);
    queued(&mut raw, 1).await;
    let two = spawn_waiter(lock.clone(), second, &order);
    queued(&mut raw, 2).await;
    // As after so many releases by other clients that Redisson would consider both dead.
    for owner in [first, second] {
        let _: f64 = raw.zincr(TIMES, owner.to_string(), -3.0 * WAITER_TIMEOUT).await.unwrap();
    }
    let before = calls_of(&mut raw, "evalsha").await;
    eventually("each has tried some four times", async || {
        assert_eq!(queue(&mut raw).await, [first.to_string(), second.to_string()]);
        calls_of(&mut raw, "evalsha").await >= before + 8
    })
    .await;
    assert!(timeout_in(&mut raw, &first.to_string()).await > WAITER_TIMEOUT / 2.0);
    assert!(timeout_in(&mut raw, &second.to_string()).await > WAITER_TIMEOUT);
    guard.release().await.unwrap();
    soon("both acquire the lock", async { (one.await.unwrap(), two.await.unwrap()) }).await;
    assert_eq!(*order.lock().unwrap(), [first, second]);
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn a_cancelled_waiter_leaves_the_queue_at_once() {
    let (server, mut raw, [locks]) = start(LONG_LEASE).await;
    let lock = locks.fair(NAME);
    let guard = lock.acquire().await.unwrap();
    let cancelled = spawn_waiter(lock.clone(), locks.owner(), &Arc::default());
    queued(&mut raw, 1).await;
    foreign_waiter(&mut raw, "another:1", 3.0 * WAITER_TIMEOUT).await;
    let owner = locks.owner();
    let remaining = spawn_waiter(lock.clone(), owner, &Arc::default());
    queued(&mut raw, 3).await;
    let before = timeout_in(&mut raw, "another:1").await;
    cancelled.abort();
    let expected = ["another:1".to_owned(), owner.to_string()];
    eventually("it has left", async || queue(&mut raw).await == expected).await;
    let moved = before - timeout_in(&mut raw, "another:1").await;
    assert!((moved - WAITER_TIMEOUT).abs() < 20_000.0, "{moved}");
    let alive: Vec<String> = raw.zrange(ALIVE, 0, -1).await.unwrap();
    assert_eq!(alive, [owner.to_string()]);

    // The lock becomes free while the other client's waiter is first, and that one gives up without
    // a message, as Redisson does. Ours would find out by its timer; the message saves the time.
    guard.release().await.unwrap();
    let _: () = raw.lrem(QUEUE, 0, "another:1").await.unwrap();
    let _: () = raw.zrem(TIMES, "another:1").await.unwrap();
    let channel = format!("redisson_lock__channel:{{printer}}:{owner}");
    let _: i64 = raw.publish(&channel, "0").await.unwrap();
    soon("it acquires the lock", remaining).await.unwrap();
    nothing_left(&server, &[&locks]).await;
}

/// The first waiter was notified and is cancelled before its attempt: it has to notify the next.
#[tokio::test]
async fn a_cancelled_first_waiter_notifies_the_next() {
    let (server, mut raw, [locks]) = start(LONG_LEASE).await;
    let lock = locks.fair(NAME);
    let _: () = raw.hset(NAME, "another:1", 1).await.unwrap();
    let _: bool = raw.pexpire(NAME, 60_000).await.unwrap();
    let cancelled = spawn_waiter(lock.clone(), locks.owner(), &Arc::default());
    queued(&mut raw, 1).await;
    let remaining = spawn_waiter(lock.clone(), locks.owner(), &Arc::default());
    queued(&mut raw, 2).await;
    // The lock is free, and no message to the first waiter arrives.
    let _: () = raw.del(NAME).await.unwrap();
    cancelled.abort();
    soon("the next acquires the lock, not by its timer", remaining).await.unwrap();
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn calls_of_one_owner_share_a_queue_position() {
    let (server, mut raw, [locks]) = start(LONG_LEASE).await;
    let lock = locks.fair(NAME);
    let guard = lock.acquire().await.unwrap();
    let owner = locks.owner();
    let one = spawn_waiter(lock.clone(), owner, &Arc::default());
    queued(&mut raw, 1).await;
    let behind = spawn_waiter(lock.clone(), locks.owner(), &Arc::default());
    queued(&mut raw, 2).await;
    // A second call of the same owner times out; the first keeps the position in the queue.
    assert!(lock.acquire_within_as(&owner, Duration::from_millis(400)).await.unwrap().is_none());
    // By the server's clock, too, its limit has passed. Any try removes the waiters that count as dead.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert_eq!(queue(&mut raw).await[0], owner.to_string());
    guard.release().await.unwrap();
    soon("both acquire the lock", async { (one.await.unwrap(), behind.await.unwrap()) }).await;
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn a_force_unlock_notifies_the_first_waiter() {
    let (server, mut raw, [locks]) = start(LONG_LEASE).await;
    let lock = locks.fair(NAME);
    let guard = lock.acquire().await.unwrap();
    let waiting = spawn_waiter(lock.clone(), locks.owner(), &Arc::default());
    queued(&mut raw, 1).await;
    assert!(lock.force_unlock().await.unwrap());
    soon("it acquires the lock", waiting).await.unwrap();
    drop(guard);
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn waiters_acquire_after_the_server_lost_its_data() {
    let (server, mut raw, [locks]) = start(Duration::from_secs(2)).await;
    let lock = locks.fair(NAME);
    let guard = lock.acquire().await.unwrap();
    let order = Arc::default();
    let mut waiting = Vec::new();
    for count in 1..=3 {
        waiting.push(spawn_waiter(lock.clone(), locks.owner(), &order));
        queued(&mut raw, count).await;
    }
    let _: () = query(&mut raw, "FLUSHALL", &[]).await;
    for task in waiting {
        soon("each acquires the lock", task).await.unwrap();
    }
    assert_eq!(order.lock().unwrap().len(), 3);
    drop(guard);
    nothing_left(&server, &[&locks]).await;
}

/// Far below the lease of 30 s, for which a waiter without a limit counts as alive.
const LIMIT: Duration = Duration::from_millis(500);

#[tokio::test]
async fn a_waiter_that_gave_up_is_in_nobodys_way_though_it_cannot_leave() {
    let (server, proxy, behind_proxy) = start_behind_proxy(LockConfig::default()).await;
    let (mut raw, direct) = (server.conn().await, locks(&server, LONG_LEASE).await);
    let holder = direct.fair(NAME).acquire().await.unwrap();

    let (lock, owner) = (behind_proxy.fair(NAME), behind_proxy.owner());
    let waiting = tokio::spawn(async move { lock.acquire_within_as(&owner, LIMIT).await });
    eventually("it is queued", async || raw.llen::<_, usize>(QUEUE).await.unwrap() == 1).await;
    // From now on it cannot tell the queue that it leaves.
    proxy.set(Mode::Hang);
    let limited = soon("its limit", waiting).await.unwrap().map(|guard| guard.is_none());
    assert!(matches!(limited, Ok(true) | Err(Error::Unavailable { .. })), "{limited:?}");

    holder.release().await.unwrap();
    let next = direct.owner();
    eventually("another acquires the free lock", async || {
        direct.fair(NAME).try_acquire_as(&next).await.unwrap().is_some()
    })
    .await;
}
