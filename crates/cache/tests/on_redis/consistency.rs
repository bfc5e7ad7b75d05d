//! Consistency of every strategy under concurrent reads and writes on two nodes, with slow loads. A
//! read on the node that invalidated sees that change or a later one; on the other node, once the
//! message has arrived; and in the end no node keeps an old value.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use cache_aside::{Cache, CachePolicy, InvalidationStatus, ReadStrategy};

use super::{KEY, Source, eventually, nodes, policy, read, version};
use testkit::redis_server::RedisServer;

/// How long reads and changes go on for each strategy, and how many there are at the least.
const LOAD_TIME: Duration = Duration::from_secs(1);
const CHANGES: u64 = 50;
const READS: u64 = 100;

/// The changes of one node.
#[derive(Default)]
struct Invalidated {
    /// The latest version whose invalidation returned.
    returned: AtomicU64,
    /// The version of each message, in the order in which they are sent.
    sent: Mutex<Vec<u64>>,
}

impl Invalidated {
    fn sent(&self) -> std::sync::MutexGuard<'_, Vec<u64>> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The version that the other node knows of.
    fn received_by(&self, receiver: &Cache) -> u64 {
        let received = usize::try_from(receiver.stats().counts.invalidations_received).unwrap();
        received.checked_sub(1).map_or(0, |last| self.sent()[last])
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_see_every_change_invalidated_before_they_began() {
    let server = RedisServer::start().await;
    for strategy in ReadStrategy::ALL {
        let nodes = nodes(&server).await;
        let source = Source::new(Duration::from_millis(2));
        let policy = CachePolicy {
            local_ttl: Duration::from_secs(60),
            ..policy()
        };
        let invalidated = Arc::new([Invalidated::default(), Invalidated::default()]);
        let stop = Arc::<AtomicBool>::default();
        let reads = Arc::<AtomicU64>::default();
        let mut tasks = Vec::new();
        for task in 0..12 {
            let node = task % 2;
            let cache = nodes[node].clone();
            let policy = policy.clone();
            let source = source.clone();
            let invalidated = invalidated.clone();
            let stop = stop.clone();
            let reads = reads.clone();
            tasks.push(tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    if task < 2 {
                        let pause = Duration::from_micros(rand::random_range(0..8_000));
                        tokio::time::sleep(pause).await;
                        let now = source.change();
                        invalidated[node].sent().push(now);
                        assert_eq!(
                            cache.invalidate(&[KEY]).await,
                            InvalidationStatus::Delivered
                        );
                        invalidated[node].returned.store(now, Ordering::SeqCst);
                        continue;
                    }
                    let returned = invalidated[node].returned.load(Ordering::SeqCst);
                    let at_least = returned.max(invalidated[1 - node].received_by(&cache));
                    let got = read(&cache, strategy, &policy, &source)
                        .await
                        .unwrap()
                        .unwrap()
                        .version;
                    assert!(
                        got >= at_least,
                        "{strategy}: read {got} after {at_least} was invalidated"
                    );
                    reads.fetch_add(1, Ordering::SeqCst);
                }
            }));
        }
        let begun = Instant::now();
        eventually("much has happened", async || {
            let changes = source.version.load(Ordering::SeqCst);
            let enough = changes > CHANGES && reads.load(Ordering::SeqCst) > READS;
            let failed = tasks.iter().any(tokio::task::JoinHandle::is_finished);
            failed || enough && begun.elapsed() > LOAD_TIME
        })
        .await;
        stop.store(true, Ordering::SeqCst);
        for task in tasks {
            task.await.unwrap();
        }
        let last = source.version.load(Ordering::SeqCst);
        println!(
            "{strategy}: {reads:?} reads, {last} changes, {} loads",
            source.loads()
        );
        for cache in &nodes {
            eventually("the last change is seen", async || {
                version(cache, strategy, &policy, &source).await == Some(last)
            })
            .await;
        }
        for cache in &nodes {
            // And it does not change back.
            assert_eq!(
                version(cache, strategy, &policy, &source).await,
                Some(last),
                "{strategy}"
            );
            assert_eq!(
                cache.invalidate(&[KEY]).await,
                InvalidationStatus::Delivered
            );
        }
    }
}
