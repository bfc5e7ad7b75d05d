//! The fair lock with leases that are shorter than the pauses of its waiters: when holders die, the
//! waiters follow each other in order, each as soon as the lease before it has ended.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use redisson_lock::Locks;

use crate::fair::{NAME, QUEUE, TIMES, queued};
use crate::{LONG_LEASE, eventually, query, start};
use testkit::redis_server::RedisServer;

/// The lease of every holder, which then dies.
const SHORT: Duration = Duration::from_secs(1);
/// Redisson's `threadWaitTime` in ms.
const WAIT_MS: i64 = 300_000;

/// What `RedissonFairLock` does to acquire. Returns nil when it has acquired, else how long to sleep in ms.
const REDISSON_ACQUIRE: &str = r"
local owner, now, wait, lease = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
while true do
  local first = redis.call('LINDEX', KEYS[2], 0)
  if not first or tonumber(redis.call('ZSCORE', KEYS[3], first)) > now then break end
  redis.call('ZREM', KEYS[3], first)
  redis.call('LPOP', KEYS[2])
end
local first = redis.call('LINDEX', KEYS[2], 0)
if redis.call('EXISTS', KEYS[1]) == 0 and (not first or first == owner) then
  redis.call('LPOP', KEYS[2])
  redis.call('ZREM', KEYS[3], owner)
  for _, other in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do
    redis.call('ZINCRBY', KEYS[3], -wait, other)
  end
  redis.call('HSET', KEYS[1], owner, 1)
  redis.call('PEXPIRE', KEYS[1], lease)
  return nil
end
local queued = redis.call('ZSCORE', KEYS[3], owner)
if queued then
  return tonumber(queued) - wait - now
end
local last = redis.call('LINDEX', KEYS[2], -1)
local ttl = last and tonumber(redis.call('ZSCORE', KEYS[3], last)) - now
  or redis.call('PTTL', KEYS[1])
redis.call('ZADD', KEYS[3], ttl + wait + now, owner)
redis.call('RPUSH', KEYS[2], owner)
return ttl";

/// The waiters in the order in which they acquired the lock.
type Order = Arc<Mutex<Vec<usize>>>;

/// A waiter of this library that acquires the lock and dies.
fn spawn_waiter(locks: &Locks, number: usize, order: &Order) {
    let lock = locks.fair(NAME).without_renewal(SHORT);
    let owner = locks.owner();
    let order = order.clone();
    tokio::spawn(async move {
        let guard = lock.acquire_as(&owner).await.unwrap();
        order.lock().unwrap().push(number);
        std::mem::forget(guard);
    });
}

/// A waiter that behaves like Redisson's `lock(lease)`: subscribes, tries, sleeps as long as the script
/// says (without limit if that is negative) or until its message, tries again. It dies when it has acquired.
///
/// Its clock is `ahead` ms ahead of the server's.
async fn spawn_redisson_waiter(server: &RedisServer, ahead: i64, number: usize, order: &Order) {
    let owner = format!("8743c9c0-0795-4907-87fd-6c719a6b4586:{number}");
    let (mut sink, mut messages) = server.client().get_async_pubsub().await.unwrap().split();
    sink.subscribe(format!("redisson_lock__channel:{{printer}}:{owner}"))
        .await
        .unwrap();
    let mut raw = server.conn().await;
    let order = order.clone();
    tokio::spawn(async move {
        let _subscribed = sink;
        loop {
            let (seconds, micros): (i64, i64) = query(&mut raw, "TIME", &[]).await;
            let sleep: Option<i64> = redis::Script::new(REDISSON_ACQUIRE)
                .key(NAME)
                .key(QUEUE)
                .key(TIMES)
                .arg(&owner)
                .arg(seconds * 1000 + micros / 1000 + ahead)
                .arg(WAIT_MS)
                .arg(u64::try_from(SHORT.as_millis()).unwrap())
                .invoke_async(&mut raw)
                .await
                .unwrap();
            let Some(sleep) = sleep else { break };
            let sleep = u64::try_from(sleep).map_or(Duration::MAX, Duration::from_millis);
            drop(tokio::time::timeout(sleep, messages.next()).await);
        }
        order.lock().unwrap().push(number);
    });
}

/// Eight waiters behind a holder that releases the lock. Those whose numbers are in `redisson` behave like
/// Redisson's.
async fn all_follow_each_other(redisson: &[usize]) {
    let (server, mut raw, both) = start::<2>(LONG_LEASE).await;
    let holder = both[0].fair(NAME).acquire().await.unwrap();
    let order = Order::default();
    for number in 0..8 {
        if redisson.contains(&number) {
            spawn_redisson_waiter(&server, 0, number, &order).await;
        } else {
            spawn_waiter(&both[number % 2], number, &order);
        }
        queued(&mut raw, QUEUE, number + 1).await;
    }
    holder.release().await.unwrap();
    // Seven leases have to end in between; by themselves the waiters would try again much later.
    eventually("all have acquired it", async || {
        order.lock().unwrap().len() == 8
    })
    .await;
    assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[tokio::test]
async fn waiters_follow_holders_that_die() {
    all_follow_each_other(&[]).await;
}

#[tokio::test]
async fn waiters_follow_holders_that_die_among_redissons() {
    all_follow_each_other(&[1, 4, 5]).await;
}

#[tokio::test]
async fn waiters_of_redisson_follow_holders_of_this_library_that_die() {
    // After the last of this library only one may follow: Redisson's second waiter would sleep for
    // minutes, as it does among Java processes alone.
    all_follow_each_other(&[0, 1, 2, 4, 5, 7]).await;
}

/// Redisson's waiter wakes before the lease has ended, and must not be told to sleep without limit then.
#[tokio::test]
async fn the_last_waiter_follows_though_its_clock_is_ahead() {
    let (server, mut raw, [locks]) = start(LONG_LEASE).await;
    let holder = locks.fair(NAME).acquire().await.unwrap();
    let order = Order::default();
    spawn_waiter(&locks, 0, &order);
    queued(&mut raw, QUEUE, 1).await;
    spawn_redisson_waiter(&server, 500, 1, &order).await;
    queued(&mut raw, QUEUE, 2).await;
    holder.release().await.unwrap();
    eventually("both have acquired it", async || {
        order.lock().unwrap().len() == 2
    })
    .await;
}
