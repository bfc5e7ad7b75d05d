//! The fenced lock: fencing tokens that rise, and a resource that rejects lower ones.

use std::time::Duration;

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use redisson_lock::{Error, LockConfig, Locks, LostReason};

use super::{locks, nothing_left, query, soon};
use crate::support::redis_server::RedisServer;

const NAME: &str = "lock:order:1";
const TOKEN: &str = "redisson_lock_token:{lock:order:1}";

#[tokio::test]
async fn a_fenced_lock_is_a_lock_hash_and_a_token_counter() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let (here, there) = (locks(&server).await, locks(&server).await);
    let (lock, owner) = (here.fenced(NAME), here.owner());

    let first = lock.acquire_as(&owner).await.unwrap();
    let hash: Vec<(String, String)> = raw.hgetall(NAME).await.unwrap();
    assert_eq!(hash, [(owner.to_string(), "1".to_owned())]);
    assert_eq!(raw.get::<_, String>(TOKEN).await.unwrap(), "1");
    assert_eq!(raw.pttl::<_, i64>(TOKEN).await.unwrap(), -1);
    assert_eq!(first.fence(), 1);
    let again = lock.acquire_as(&owner).await.unwrap();
    assert_eq!((again.fence(), raw.get::<_, u64>(TOKEN).await.unwrap()), (1, 1));
    // A failed attempt uses up no token.
    let other = there.fenced(NAME);
    assert!(other.try_acquire().await.unwrap().is_none());
    assert_eq!(raw.get::<_, u64>(TOKEN).await.unwrap(), 1);
    again.release().await.unwrap();
    first.release().await.unwrap();

    let second = other.acquire().await.unwrap();
    assert_eq!(second.fence(), 2);
    second.release().await.unwrap();
    // A client of another language acquired it in between.
    let _: i64 = raw.incr(TOKEN, 5).await.unwrap();
    let third = lock.acquire_as(&owner).await.unwrap();
    assert_eq!(third.fence(), 8);
    third.release().await.unwrap();

    let braces = here.fenced("lock:{7}:order").acquire_as(&owner).await.unwrap();
    let key = "redisson_lock_token:lock:{7}:order";
    assert_eq!((braces.fence(), raw.get::<_, u64>(key).await.unwrap()), (1, 1));
    drop(braces);
    nothing_left(&server, &[&here, &there]).await;
}

#[tokio::test]
async fn release_and_force_unlock_publish_0_on_the_lock_channel() {
    use futures_util::StreamExt;
    let server = RedisServer::start().await;
    let locks = locks(&server).await;
    let (mut sink, mut messages) = server.client().get_async_pubsub().await.unwrap().split();
    sink.subscribe("redisson_lock__channel:{lock:order:1}").await.unwrap();
    let lock = locks.fenced(NAME);
    lock.acquire().await.unwrap().release().await.unwrap();
    let held = lock.acquire().await.unwrap();
    assert!(lock.force_unlock().await.unwrap());
    drop(held);
    for _ in 0..2 {
        let message = soon("a message", messages.next()).await.unwrap();
        assert_eq!(message.get_payload_bytes(), b"0");
    }
}

#[tokio::test]
async fn a_counter_of_another_type_is_rejected_before_acquiring() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let locks = locks(&server).await;
    let _: () = raw.set(TOKEN, "text").await.unwrap();
    let error = locks.fenced(NAME).try_acquire().await.unwrap_err();
    assert!(matches!(error, Error::Rejected { .. }), "{error:?}");
    assert!(!raw.exists::<_, bool>(NAME).await.unwrap());
}

/// Writes `value` unless a higher token was seen, as a resource protected by fencing does.
async fn guarded_write(raw: &mut MultiplexedConnection, fence: u64, value: &str) -> bool {
    let script = "if tonumber(redis.call('HGET', KEYS[1], 'fence') or 0) > tonumber(ARGV[1]) then
        return 0 end
        return redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'value', ARGV[2]) * 0 + 1";
    query(raw, "EVAL", &[script, "1", "register", &fence.to_string(), value]).await
}

/// A holder that resumes after its lease writes all the same, as it cannot know in time; only the
/// resource can reject the write.
#[tokio::test]
async fn a_resource_rejects_writes_with_an_older_token() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let config = LockConfig::default();
    let locks = Locks::connect(server.client(), config).await.unwrap();
    let lock = locks.fenced(NAME).without_renewal(Duration::from_millis(200));
    let late = lock.acquire().await.unwrap();
    assert!(guarded_write(&mut raw, late.fence(), "early").await);
    assert!(guarded_write(&mut raw, late.fence(), "early, once more").await);
    assert_eq!(soon("the lease ends", late.lost()).await, LostReason::Expired);
    let next = soon("the key expires", lock.acquire()).await.unwrap();
    assert!(next.fence() > late.fence());
    assert!(guarded_write(&mut raw, next.fence(), "next").await);
    assert!(!guarded_write(&mut raw, late.fence(), "stale").await, "a stale write was accepted");
    let value: String = raw.hget("register", "value").await.unwrap();
    assert_eq!(value, "next");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_in_the_order_of_acquisition() {
    let server = RedisServer::start().await;
    let both = [locks(&server).await, locks(&server).await];
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for i in 0..20 {
        let (locks, seen) = (both[i % 2].clone(), seen.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..5 {
                let lock = locks.fenced(NAME);
                let guard = lock.acquire().await.unwrap();
                seen.lock().unwrap().push(guard.fence());
                guard.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 100);
    assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
}
