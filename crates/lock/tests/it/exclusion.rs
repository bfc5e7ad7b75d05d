//! Mutual exclusion, checked with a counter that loses updates when two holders overlap. The same
//! check is run on locks known to be broken, to show that it can fail.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use redisson_lock::Locks;

use super::{locks, nothing_left};
use crate::support::redis_server::RedisServer;

const NAME: &str = "lock:order:1";
const TASKS: u32 = 40;
const TURNS: u32 = 5;

/// Read, pause, write back: the pause is where an update of another owner gets lost.
pub(super) async fn increment(counter: &AtomicU32) {
    let seen = counter.load(Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(1)).await;
    counter.store(seen + 1, Ordering::SeqCst);
}

/// Runs `turn` in many tasks, half of them with each of two clients; returns the number of lost
/// updates.
pub(super) async fn lost_updates<L, F>(
    both: [L; 2],
    turn: impl Fn(L, Arc<AtomicU32>) -> F + Copy + Send + 'static,
) -> u32
where
    L: Clone + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let counter = Arc::new(AtomicU32::new(0));
    let tasks: Vec<_> = (0..TASKS)
        .map(|i| {
            let (locks, counter) = (both[i as usize % 2].clone(), counter.clone());
            tokio::spawn(async move {
                for _ in 0..TURNS {
                    turn(locks.clone(), counter.clone()).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("a turn failed");
    }
    TASKS * TURNS - counter.load(Ordering::SeqCst)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_setnx_lock_loses_no_update_within_its_lease() {
    let server = RedisServer::start().await;
    let both = [locks(&server).await, locks(&server).await];
    let lost = lost_updates(both.clone(), |locks: Locks, counter| async move {
        let lock = locks.setnx(NAME, Duration::from_secs(60));
        let guard = loop {
            match lock.try_acquire().await.unwrap() {
                Some(guard) => break guard,
                None => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        };
        increment(&counter).await;
        guard.release().await.unwrap();
    })
    .await;
    assert_eq!(lost, 0);
    nothing_left(&server, &[&both[0], &both[1]]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_check_detects_a_missing_lock() {
    let lost = lost_updates([(), ()], |(), counter: Arc<AtomicU32>| async move {
        increment(&counter).await;
    })
    .await;
    assert!(lost > 0, "the check cannot fail");
}
