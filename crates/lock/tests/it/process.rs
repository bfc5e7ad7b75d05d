//! Locks within one process (`ProcessLocks`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use redisson_lock::ProcessLocks;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_task_holds_a_key_at_a_time() {
    let locks = ProcessLocks::new();
    let inside: Arc<[AtomicU32; 4]> = Arc::default();
    let tasks: Vec<_> = (0..200)
        .map(|i| {
            let (locks, inside) = (locks.clone(), inside.clone());
            tokio::spawn(async move {
                let key = i % 4;
                let guard = locks.acquire(key as u64).await;
                assert_eq!(inside[key].fetch_add(1, Ordering::SeqCst), 0, "two inside");
                tokio::task::yield_now().await;
                inside[key].fetch_sub(1, Ordering::SeqCst);
                drop(guard);
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert!(locks.is_empty(), "{} keys left", locks.len());
}

#[tokio::test]
async fn keys_are_independent() {
    let locks = ProcessLocks::new();
    let one = locks.acquire(1).await;
    let two = tokio::time::timeout(Duration::from_secs(5), locks.acquire(2)).await.unwrap();
    assert_eq!(locks.len(), 2);
    drop((one, two));
    assert!(locks.is_empty());
}
