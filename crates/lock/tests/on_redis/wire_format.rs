//! Wire format of the reentrant lock, which other client libraries read: keys, fields, TTL, channel
//! and message, byte for byte.

use std::collections::HashMap;
use std::time::Duration;

use redis::AsyncCommands;
use redisson_lock::{Error, LostReason};

use super::{LEASE, LONG_LEASE, calls_of, messages, next_message, nothing_left, query, start};

#[tokio::test]
async fn a_held_lock_is_a_hash_as_redisson_writes_it() {
    let (server, mut raw, [locks]) = start(LONG_LEASE).await;
    let lock = locks.lock("lock:order:1010");
    let owner = locks.owner();
    assert_eq!(lock.remaining().await.unwrap(), None);
    assert!(!lock.is_locked().await.unwrap());
    let guard = lock.acquire_as(&owner).await.unwrap();

    let kind: String = query(&mut raw, "TYPE", &["lock:order:1010"]).await;
    assert_eq!(kind, "hash");
    let hash: HashMap<String, String> = raw.hgetall("lock:order:1010").await.unwrap();
    let (field, count) = hash.iter().next().unwrap();
    assert_eq!((hash.len(), count.as_str()), (1, "1"));
    assert_eq!(field, &owner.to_string());
    let (uuid, id) = field.split_once(':').unwrap();
    let shape: String = uuid
        .chars()
        .map(|c| if c == '-' { '-' } else { 'x' })
        .collect();
    assert_eq!(shape, "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx");
    assert!(
        uuid.chars()
            .all(|c| matches!(c, '0'..='9' | 'a'..='f' | '-')),
        "{uuid}"
    );
    assert!(
        id.parse::<i64>().is_ok_and(|id| id >= 0),
        "{id} is not 63 bits"
    );
    let ttl: i64 = raw.pttl("lock:order:1010").await.unwrap();
    assert!((90_000..=120_000).contains(&ttl), "{ttl}");
    let _: bool = raw.persist("lock:order:1010").await.unwrap();
    assert_eq!(lock.remaining().await.unwrap(), Some(Duration::MAX));

    guard.release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}

/// As Redisson does it.
#[tokio::test]
async fn a_release_that_leaves_holds_gives_them_their_full_lease() {
    let (server, mut raw, [locks]) = start(LONG_LEASE).await;
    let lock = locks.lock("lock:order:1010");
    let owner = locks.owner();
    let outer = lock.acquire_as(&owner).await.unwrap();
    let inner = lock.acquire_as(&owner).await.unwrap();
    let _: bool = raw.pexpire("lock:order:1010", 30_000).await.unwrap();
    inner.release().await.unwrap();
    let ttl: i64 = raw.pttl("lock:order:1010").await.unwrap();
    assert!((90_000..=120_000).contains(&ttl), "{ttl}");
    outer.release().await.unwrap();
    nothing_left(&server, &[&locks]).await;
}

#[tokio::test]
async fn release_and_force_unlock_publish_0() {
    let (server, _, [locks]) = start(LEASE).await;
    let owner = locks.owner();
    for (name, channel) in [
        ("lock:order:7", "redisson_lock__channel:{lock:order:7}"),
        ("lock:{7}:order", "redisson_lock__channel:lock:{7}:order"),
    ] {
        let mut messages = messages(&server, channel).await;
        let lock = locks.lock(name);

        let outer = lock.acquire_as(&owner).await.unwrap();
        let inner = lock.acquire_as(&owner).await.unwrap();
        inner.release().await.unwrap();
        outer.release().await.unwrap();
        let held = lock.acquire_as(&owner).await.unwrap();
        assert!(lock.force_unlock().await.unwrap());
        assert!(!lock.force_unlock().await.unwrap());
        assert_eq!(held.release().await, Err(Error::Lost(LostReason::Expired)));
        // One message for the last release, one for the forced one, none else before this one.
        let _: i64 = server.conn().await.publish(channel, "end").await.unwrap();
        for expected in ["0", "0", "end"] {
            assert_eq!(next_message(&mut messages).await, expected);
        }
    }
}

#[tokio::test]
async fn an_uncontended_acquire_and_release_costs_two_commands() {
    let (_server, mut raw, [locks]) = start(LEASE).await;
    let lock = locks.lock("lock:order:1");
    // The first cycle loads the scripts.
    lock.try_acquire()
        .await
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();
    let _: () = query(&mut raw, "CONFIG", &["RESETSTAT"]).await;
    for _ in 0..100 {
        lock.try_acquire()
            .await
            .unwrap()
            .unwrap()
            .release()
            .await
            .unwrap();
    }
    assert_eq!(calls_of(&mut raw, "evalsha").await, 200);
    for command in ["eval", "script|load", "subscribe", "ping", "set"] {
        assert_eq!(calls_of(&mut raw, command).await, 0, "{command}");
    }
}

#[tokio::test]
async fn a_hold_of_another_client_library_is_left_unchanged() {
    let (_server, mut raw, [locks]) = start(LEASE).await;
    let owner = locks.owner();
    let name = "lock:order:1";
    let lock = locks.lock(name);
    let foreign = "8743c9c0-0795-4907-87fd-6c719a6b4586:52";

    let guard = lock.acquire_as(&owner).await.unwrap();
    // The lock is removed, and then held by a client of another language.
    let _: () = raw.del(name).await.unwrap();
    let _: () = raw.hset(name, foreign, 2).await.unwrap();
    let _: bool = raw.pexpire(name, 60_000).await.unwrap();
    assert_eq!(guard.release().await, Err(Error::Lost(LostReason::Expired)));

    assert!(lock.try_acquire_as(&owner).await.unwrap().is_none());
    let hash: HashMap<String, u32> = raw.hgetall(name).await.unwrap();
    assert_eq!(hash, HashMap::from([(foreign.to_owned(), 2)]));
    let remaining_lease = lock.remaining().await.unwrap().unwrap();
    assert!(
        remaining_lease > Duration::from_secs(50),
        "{remaining_lease:?}"
    );
    assert!(lock.is_locked().await.unwrap());
    assert_eq!(lock.hold_count(&owner).await.unwrap(), 0);
}

#[tokio::test]
async fn names_without_a_valid_hash_tag_are_rejected() {
    let (_server, _, [locks]) = start(LEASE).await;
    for name in ["", "a{b", "a}b", "a{}b"] {
        let lock = locks.lock(name);
        for refused in [
            lock.try_acquire().await.map(drop),
            lock.acquire().await.map(drop),
            lock.is_locked().await.map(drop),
            lock.force_unlock().await.map(drop),
            locks.multi(["a", name]).acquire().await.map(drop),
        ] {
            assert!(
                matches!(refused, Err(Error::InvalidName { .. })),
                "{name:?}: {refused:?}"
            );
        }
    }
    let refused = locks.multi([""; 0]).acquire().await.map(drop);
    assert!(
        matches!(refused, Err(Error::InvalidName { .. })),
        "no name: {refused:?}"
    );
}
