//! Consistency of every strategy under concurrent reads and writes on two nodes, with slow loads. A
//! read on the node that invalidated sees that change or a later one; on the other node, after the
//! time a message takes; and in the end no node keeps an old value.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cache_aside::{InvalidationStatus, ReadStrategy};

use super::{KEY, Source, eventually, nodes, policy, read, version};
use crate::support::redis_server::RedisServer;

/// How long the load lasts, for each strategy.
const LOAD_TIME: Duration = Duration::from_millis(1500);

/// How long a message may take on a busy machine. Entries in memory live far longer.
const MESSAGE: Duration = Duration::from_millis(300);

/// The versions that readers must see by now.
struct Invalidated {
    /// The latest version whose invalidation returned, by node.
    version: [AtomicU64; 2],
    /// The same, with the time at which it returned.
    since: [std::sync::Mutex<(u64, Instant)>; 2],
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_see_every_change_invalidated_before_they_began() {
    let server = RedisServer::start().await;
    for strategy in ReadStrategy::ALL {
        let nodes = nodes(&server).await;
        let source = Source::new(Duration::from_millis(2));
        let policy = policy().with_local_ttl(Duration::from_secs(60));
        let begun = Instant::now();
        let seen = Arc::new(Invalidated {
            version: [0.into(), 0.into()],
            since: [(0, begun).into(), (0, begun).into()],
        });
        let stop = Arc::<AtomicBool>::default();
        let mut tasks = Vec::new();
        for task in 0..12 {
            let at = task % 2;
            let (cache, policy, source) = (nodes[at].clone(), policy.clone(), source.clone());
            let (seen, stop) = (seen.clone(), stop.clone());
            tasks.push(tokio::spawn(async move {
                let mut reads: u64 = 0;
                while !stop.load(Ordering::SeqCst) {
                    if task < 2 {
                        let pause = Duration::from_micros(rand::random_range(0..8_000));
                        tokio::time::sleep(pause).await;
                        let now = source.change();
                        assert_eq!(cache.invalidate(&[KEY]).await, InvalidationStatus::Delivered);
                        seen.version[at].fetch_max(now, Ordering::SeqCst);
                        let mut since = seen.since[at].lock().unwrap();
                        *since = (since.0.max(now), Instant::now());
                        continue;
                    }
                    let mut at_least = seen.version[at].load(Ordering::SeqCst);
                    let there = *seen.since[1 - at].lock().unwrap();
                    if there.1.elapsed() > MESSAGE {
                        at_least = at_least.max(there.0);
                    }
                    let got =
                        read(&cache, strategy, &policy, &source).await.unwrap().unwrap().version;
                    assert!(
                        got >= at_least,
                        "{strategy}: read {got} after {at_least} was invalidated"
                    );
                    reads += 1;
                }
                reads
            }));
        }
        tokio::time::sleep(LOAD_TIME).await;
        stop.store(true, Ordering::SeqCst);
        let mut reads = 0;
        for task in tasks {
            reads += task.await.unwrap();
        }
        let last = source.change() - 1;
        source.version.store(last, Ordering::SeqCst);
        let changes = last - 1;
        println!("{strategy}: {reads} reads, {changes} changes, {} loads", source.loads());
        assert!(reads > 100 && changes > 50, "{strategy}: too little happened");
        for cache in &nodes {
            eventually("the last change is seen", async || {
                version(cache, strategy, &policy, &source).await == Some(last)
            })
            .await;
        }
        for cache in &nodes {
            // And it does not change back.
            assert_eq!(version(cache, strategy, &policy, &source).await, Some(last), "{strategy}");
            assert_eq!(cache.invalidate(&[KEY]).await, InvalidationStatus::Delivered);
        }
    }
}
