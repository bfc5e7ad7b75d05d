//! The fair lock: its queue on the wire, first come first served, and what becomes of waiters that
//! give up, die, or belong to another client.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use redisson_lock::{FairLock, LockConfig, Locks, Owner};
use tokio::task::JoinHandle;

use super::{ask, eventually, nothing_left, soon};
use crate::support::redis_server::RedisServer;

const NAME: &str = "printer";
const QUEUE: &str = "redisson_lock_queue:{printer}";
const TIMES: &str = "redisson_lock_timeout:{printer}";
const ALIVE: &str = "lock_waiters_alive:{printer}";
/// What Redisson allows each waiter, in ms.
const ALLOWANCE: f64 = 300_000.0;

/// Locks with a lease long enough that a waiter on a busy machine is not taken for dead.
async fn locks_with(server: &RedisServer, lease: Duration) -> Locks {
    let config = LockConfig::default().with_lease(lease);
    Locks::connect(server.client(), config).await.unwrap()
}

async fn locks(server: &RedisServer) -> Locks {
    locks_with(server, Duration::from_secs(30)).await
}

/// Who waits, first come first.
async fn queue(raw: &mut MultiplexedConnection) -> Vec<String> {
    raw.lrange(QUEUE, 0, -1).await.unwrap()
}

/// Until when Redisson believes `owner` to be alive, in ms from now.
async fn believed(raw: &mut MultiplexedConnection, owner: &str) -> f64 {
    let score: f64 = raw.zscore(TIMES, owner).await.unwrap();
    score - now(raw).await
}

/// The server's clock in ms.
async fn now(raw: &mut MultiplexedConnection) -> f64 {
    let (seconds, micros): (f64, f64) = ask(raw, "TIME", &[]).await;
    seconds * 1000.0 + (micros / 1000.0).floor()
}

/// Wait until so many stand in the queue, and each of ours listens on a channel of its own.
async fn queued(raw: &mut MultiplexedConnection, count: usize) {
    eventually("they stand in the queue and listen", async || {
        let channels: Vec<String> = ask(raw, "PUBSUB", &["CHANNELS"]).await;
        let queue = queue(raw).await;
        let foreign = queue.iter().filter(|owner| owner.starts_with("somebody")).count();
        queue.len() == count && channels.len() + foreign == count
    })
    .await;
}

/// A task that waits for the lock, notes its owner when it is in, and leaves.
fn passing(lock: FairLock, me: Owner, order: &Arc<Mutex<Vec<Owner>>>) -> JoinHandle<()> {
    let order = order.clone();
    tokio::spawn(async move {
        let guard = lock.acquire(&me).await.unwrap();
        order.lock().unwrap().push(me);
        guard.release().await.unwrap();
    })
}

/// Another client's waiter stands in the queue, alive for so many ms.
async fn foreign_waiter(raw: &mut MultiplexedConnection, owner: &str, alive: f64) {
    let until = now(raw).await + alive;
    let _: () = raw.rpush(QUEUE, owner).await.unwrap();
    let _: () = raw.zadd(TIMES, owner, until).await.unwrap();
}

#[tokio::test]
async fn every_step_is_redissons() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = locks(&server).await;
    let lock = locks.fair(NAME).unwrap();
    let (me, second, third) = (locks.owner(), locks.owner(), locks.owner());

    let guard = lock.acquire(&me).await.unwrap();
    let hash: Vec<(String, String)> = raw.hgetall(NAME).await.unwrap();
    assert_eq!(hash, [(me.to_string(), "1".to_owned())]);
    let keys: Vec<String> = ask(&mut raw, "KEYS", &["*"]).await;
    assert_eq!(keys, [NAME], "without waiters it is the lock alone");
    // Trying does not queue.
    assert!(lock.try_acquire(&second).await.unwrap().is_none());
    assert!(lock.acquire_within(&second, Duration::ZERO).await.unwrap().is_none());
    assert!(queue(&mut raw).await.is_empty());

    let order = Arc::default();
    let waiting = passing(lock.clone(), second, &order);
    queued(&mut raw, 1).await;
    let last = passing(lock.clone(), third, &order);
    queued(&mut raw, 2).await;
    assert_eq!(queue(&mut raw).await, [second.to_string(), third.to_string()]);
    // The lease of the holder, and five minutes for each place.
    let first = believed(&mut raw, &second.to_string()).await;
    assert!((ALLOWANCE..=ALLOWANCE + 30_000.0).contains(&first), "{first}");
    let behind = believed(&mut raw, &third.to_string()).await - first;
    assert!((behind - ALLOWANCE).abs() < 30_000.0, "{behind}");
    let mut channels: Vec<String> = ask(&mut raw, "PUBSUB", &["CHANNELS"]).await;
    channels.sort();
    let mut expected = [second, third].map(|o| format!("redisson_lock__channel:{{printer}}:{o}"));
    expected.sort();
    assert_eq!(channels, expected);

    // The release tells the first, and nobody else.
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
    soon("both get in", async { (waiting.await.unwrap(), last.await.unwrap()) }).await;
    assert_eq!(*order.lock().unwrap(), [second, third]);
    // Nobody waits, so nobody is told.
    lock.acquire(&me).await.unwrap().release().await.unwrap();
    let _: i64 = raw.publish("the end", "").await.unwrap();
    let message = soon("a message", messages.next()).await.unwrap();
    assert_eq!(message.get_channel_name(), "the end");
    drop((sink, messages));
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn first_come_first_served() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let both = [locks(&server).await, locks(&server).await];
    let holder = both[0].fair(NAME).unwrap().acquire(&both[0].owner()).await.unwrap();
    let order = Arc::default();
    let mut expected = Vec::new();
    let mut waiting = Vec::new();
    for i in 0..12 {
        let locks = &both[i % 2];
        let me = locks.owner();
        waiting.push(passing(locks.fair(NAME).unwrap(), me, &order));
        expected.push(me);
        queued(&mut raw, i + 1).await;
    }
    let started = Instant::now();
    holder.release().await.unwrap();
    for task in waiting {
        soon("each gets in", task).await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), expected);
    // By messages, not by timers, which would take a third of 30 s each.
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
    nothing_left(&server, &[&both[0], &both[1]]).await;
}

#[tokio::test]
async fn nobody_overtakes_a_waiter() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = locks(&server).await;
    let lock = locks.fair(NAME).unwrap();
    // The lock is free, and another client's waiter has just been told so.
    foreign_waiter(&mut raw, "somebody:1", 60_000.0).await;
    let me = locks.owner();
    assert!(lock.try_acquire(&me).await.unwrap().is_none());
    assert!(lock.acquire_within(&me, Duration::from_millis(100)).await.unwrap().is_none());
    eventually("it has left", async || queue(&mut raw).await == ["somebody:1"]).await;

    // It is in, and leaves as Redisson does: whoever stands first is told.
    let waiting = passing(lock.clone(), me, &Arc::default());
    queued(&mut raw, 2).await;
    let _: () = raw.lpop(QUEUE, None).await.unwrap();
    let _: () = raw.zrem(TIMES, "somebody:1").await.unwrap();
    let _: f64 = raw.zincr(TIMES, me.to_string(), -ALLOWANCE).await.unwrap();
    let channel = format!("redisson_lock__channel:{{printer}}:{me}");
    let _: i64 = raw.publish(&channel, "0").await.unwrap();
    soon("it gets in", waiting).await.unwrap();
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn a_foreign_waiter_that_died_is_passed_over() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = locks(&server).await;
    let lock = locks.fair(NAME).unwrap();
    foreign_waiter(&mut raw, "dead:1", -1.0).await;
    foreign_waiter(&mut raw, "dead:2", -1.0).await;
    let _: () = raw.rpush(QUEUE, "without a time:3").await.unwrap();
    let guard = lock.try_acquire(&locks.owner()).await.unwrap().expect("nobody alive waits");
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

/// A process that waits and dies: its runtime goes, and nothing in it can clean up.
fn dying_waiter(server: &RedisServer, lease: Duration) -> tokio::runtime::Runtime {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let client = server.client();
    runtime.spawn(async move {
        let config = LockConfig::default().with_lease(lease);
        let locks = Locks::connect(client, config).await.unwrap();
        let guard = locks.fair(NAME).unwrap().acquire(&locks.owner()).await.unwrap();
        panic!("it got in: {guard:?}");
    });
    runtime
}

#[tokio::test]
async fn a_waiter_that_died_is_passed_over_within_a_lease() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let lease = Duration::from_secs(3);
    let locks = locks_with(&server, lease).await;
    let lock = locks.fair(NAME).unwrap();
    let guard = lock.acquire(&locks.owner()).await.unwrap();
    let process = dying_waiter(&server, lease);
    queued(&mut raw, 1).await;
    let me = locks.owner();
    let waiting = passing(lock.clone(), me, &Arc::default());
    queued(&mut raw, 2).await;
    process.shutdown_background();
    let dead = queue(&mut raw).await[0].clone();
    let died = Instant::now();
    guard.release().await.unwrap();
    soon("it is passed over", waiting).await.unwrap();
    assert!(!queue(&mut raw).await.contains(&dead));
    // A lease, and a third until the next one looks; not the five minutes of Redisson.
    assert!(died.elapsed() < lease * 2, "{:?}", died.elapsed());
    nothing_left(&server, &[&locks]).await;
}

/// With nobody else waiting, nobody kept up the times until which our waiters are alive.
#[tokio::test]
async fn a_lone_waiter_that_died_is_passed_over_however_late() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let (locks, lease) = (locks(&server).await, Duration::from_millis(300));
    let lock = locks.fair(NAME).unwrap();
    let guard = lock.acquire(&locks.owner()).await.unwrap();
    let process = dying_waiter(&server, lease);
    queued(&mut raw, 1).await;
    process.shutdown_background();
    tokio::time::sleep(lease * 3).await;
    assert_eq!(queue(&mut raw).await.len(), 1, "it left by itself; this shows nothing");
    guard.release().await.unwrap();
    let next = lock.acquire_within(&locks.owner(), Duration::from_secs(5)).await.unwrap();
    next.expect("the dead waiter is in the way").release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn waiters_keep_their_places_however_long_it_takes() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let lease = Duration::from_secs(2);
    let locks = locks_with(&server, lease).await;
    let lock = locks.fair(NAME).unwrap();
    let guard = lock.acquire(&locks.owner()).await.unwrap();
    let order = Arc::default();
    let (first, second) = (locks.owner(), locks.owner());
    let one = passing(lock.clone(), first, &order);
    queued(&mut raw, 1).await;
    let two = passing(lock.clone(), second, &order);
    queued(&mut raw, 2).await;
    // Other clients took and gave back so often that by Redisson's sums both are long dead.
    for owner in [first, second] {
        let _: f64 = raw.zincr(TIMES, owner.to_string(), -3.0 * ALLOWANCE).await.unwrap();
    }
    let end = Instant::now() + lease * 3;
    while Instant::now() < end {
        assert_eq!(queue(&mut raw).await, [first.to_string(), second.to_string()]);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(believed(&mut raw, &first.to_string()).await > ALLOWANCE / 2.0);
    assert!(believed(&mut raw, &second.to_string()).await > ALLOWANCE);
    guard.release().await.unwrap();
    soon("both get in", async { (one.await.unwrap(), two.await.unwrap()) }).await;
    assert_eq!(*order.lock().unwrap(), [first, second]);
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn a_waiter_that_gives_up_leaves_at_once_and_those_behind_move_up() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = locks(&server).await;
    let lock = locks.fair(NAME).unwrap();
    let guard = lock.acquire(&locks.owner()).await.unwrap();
    let quitter = passing(lock.clone(), locks.owner(), &Arc::default());
    queued(&mut raw, 1).await;
    foreign_waiter(&mut raw, "somebody:1", 3.0 * ALLOWANCE).await;
    let me = locks.owner();
    let stayer = passing(lock.clone(), me, &Arc::default());
    queued(&mut raw, 3).await;
    let before = believed(&mut raw, "somebody:1").await;
    quitter.abort();
    let expected = ["somebody:1".to_owned(), me.to_string()];
    eventually("it has left", async || queue(&mut raw).await == expected).await;
    let moved = before - believed(&mut raw, "somebody:1").await;
    assert!((moved - ALLOWANCE).abs() < 20_000.0, "{moved}");
    let alive: Vec<String> = raw.zrange(ALIVE, 0, -1).await.unwrap();
    assert_eq!(alive, [me.to_string()]);

    // The lock comes free while the other client's waiter is first, and that one gives up: as a
    // Redisson client does, without telling anybody. Ours finds out by itself; here it is told.
    guard.release().await.unwrap();
    let _: () = raw.lrem(QUEUE, 0, "somebody:1").await.unwrap();
    let _: () = raw.zrem(TIMES, "somebody:1").await.unwrap();
    let channel = format!("redisson_lock__channel:{{printer}}:{me}");
    let _: i64 = raw.publish(&channel, "0").await.unwrap();
    soon("it gets in", stayer).await.unwrap();
    nothing_left(&server, &[&locks]).await;
}

/// The first was told, and gives up without having looked: the next has to be told by it.
#[tokio::test]
async fn a_first_waiter_that_goes_away_hands_its_turn_on() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = locks(&server).await;
    let lock = locks.fair(NAME).unwrap();
    let _: () = raw.hset(NAME, "somebody", 1).await.unwrap();
    let _: bool = raw.pexpire(NAME, 60_000).await.unwrap();
    let quitter = passing(lock.clone(), locks.owner(), &Arc::default());
    queued(&mut raw, 1).await;
    let stayer = passing(lock.clone(), locks.owner(), &Arc::default());
    queued(&mut raw, 2).await;
    // Free, and the message to the first never comes.
    let _: () = raw.del(NAME).await.unwrap();
    let left = Instant::now();
    quitter.abort();
    soon("the next gets in", stayer).await.unwrap();
    assert!(left.elapsed() < Duration::from_secs(5), "{:?}: by its timer", left.elapsed());
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn calls_of_one_owner_share_a_place() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = locks(&server).await;
    let lock = locks.fair(NAME).unwrap();
    let guard = lock.acquire(&locks.owner()).await.unwrap();
    let me = locks.owner();
    let one = passing(lock.clone(), me, &Arc::default());
    queued(&mut raw, 1).await;
    let behind = passing(lock.clone(), locks.owner(), &Arc::default());
    queued(&mut raw, 2).await;
    // The second call of the same owner comes and goes; the first keeps their place.
    assert!(lock.acquire_within(&me, Duration::from_millis(100)).await.unwrap().is_none());
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(queue(&mut raw).await[0], me.to_string());
    guard.release().await.unwrap();
    soon("both get in", async { (one.await.unwrap(), behind.await.unwrap()) }).await;
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn a_force_unlock_tells_the_first() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = locks(&server).await;
    let lock = locks.fair(NAME).unwrap();
    let guard = lock.acquire(&locks.owner()).await.unwrap();
    let waiting = passing(lock.clone(), locks.owner(), &Arc::default());
    queued(&mut raw, 1).await;
    let freed = Instant::now();
    assert!(lock.force_unlock().await.unwrap());
    soon("it gets in", waiting).await.unwrap();
    assert!(freed.elapsed() < Duration::from_secs(5), "{:?}", freed.elapsed());
    drop(guard);
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn waiters_of_a_server_that_lost_its_data_get_in_all_the_same() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = locks_with(&server, Duration::from_secs(2)).await;
    let lock = locks.fair(NAME).unwrap();
    let guard = lock.acquire(&locks.owner()).await.unwrap();
    let order = Arc::default();
    let mut waiting = Vec::new();
    for count in 1..=3 {
        waiting.push(passing(lock.clone(), locks.owner(), &order));
        queued(&mut raw, count).await;
    }
    let _: () = ask(&mut raw, "FLUSHALL", &[]).await;
    for task in waiting {
        soon("each gets in", task).await.unwrap();
    }
    assert_eq!(order.lock().unwrap().len(), 3);
    drop(guard);
    nothing_left(&server, &[&locks]).await;
}
