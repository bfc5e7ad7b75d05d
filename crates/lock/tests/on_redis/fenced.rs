//! The fenced lock: fencing tokens that rise. The resource that refuses lower ones is `examples/fenced_resource.rs`.

use redis::AsyncCommands;
use redisson_lock::Error;

use super::{LEASE, nothing_left, start};

const NAME: &str = "lock:order:1";
const TOKEN: &str = "redisson_lock_token:{lock:order:1}";

#[tokio::test]
async fn a_fenced_lock_is_a_lock_hash_and_a_token_counter() {
    let (server, mut raw, [first_locks, second_locks]) = start(LEASE).await;
    let first_lock = first_locks.fenced(NAME);
    let owner = first_locks.owner();

    let first = first_lock.acquire_as(&owner).await.unwrap();
    let hash: Vec<(String, String)> = raw.hgetall(NAME).await.unwrap();
    assert_eq!(hash, [(owner.to_string(), "1".to_owned())]);
    assert_eq!(raw.get::<_, String>(TOKEN).await.unwrap(), "1");
    assert_eq!(raw.pttl::<_, i64>(TOKEN).await.unwrap(), -1);
    assert_eq!(first.fence(), 1);
    let again = first_lock.acquire_as(&owner).await.unwrap();
    assert_eq!(
        (again.fence(), raw.get::<_, u64>(TOKEN).await.unwrap()),
        (1, 1)
    );
    // A failed attempt uses up no token.
    let second_lock = second_locks.fenced(NAME);
    assert!(second_lock.try_acquire().await.unwrap().is_none());
    assert_eq!(raw.get::<_, u64>(TOKEN).await.unwrap(), 1);
    again.release().await.unwrap();
    first.release().await.unwrap();

    let second = second_lock.acquire().await.unwrap();
    assert_eq!(second.fence(), 2);
    second.release().await.unwrap();
    // A client of another language acquired it in between.
    let _: i64 = raw.incr(TOKEN, 5).await.unwrap();
    let third = first_lock.acquire_as(&owner).await.unwrap();
    assert_eq!(third.fence(), 8);
    third.release().await.unwrap();

    let braces = first_locks
        .fenced("lock:{7}:order")
        .acquire_as(&owner)
        .await
        .unwrap();
    let key = "redisson_lock_token:lock:{7}:order";
    assert_eq!(
        (braces.fence(), raw.get::<_, u64>(key).await.unwrap()),
        (1, 1)
    );
    drop(braces);
    nothing_left(&server, &[&first_locks, &second_locks]).await;
    // A counter of another type.
    let _: () = raw.set(TOKEN, "text").await.unwrap();
    fails_as!(first_lock.try_acquire().await, Rejected);
    assert!(!raw.exists::<_, bool>(NAME).await.unwrap());
}
