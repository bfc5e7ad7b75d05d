//! The law of all policies, under fire: readers and writers on two nodes at once, with loads that
//! take their time. Whoever reads on a node after a change was made known there sees it or a later
//! one; on the other node, a moment later; and in the end nobody is left with an old value.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cache_aside::{Delivery, Kind, Policy};

use super::{KEY, Source, eventually, nodes, policy, read, version};
use crate::support::redis_server::RedisServer;

/// How long the fire lasts, for each policy.
const FIRE: Duration = Duration::from_millis(1500);

/// What a message may take on a busy machine. Entries in memory last far longer.
const MESSAGE: Duration = Duration::from_millis(300);

/// What must be seen by now.
struct Seen {
    /// On each node, the version whose invalidation returned there.
    here: [AtomicU64; 2],
    /// When each node last raised its version.
    since: [std::sync::Mutex<(u64, Instant)>; 2],
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_see_what_was_changed_before_they_began() {
    let server = RedisServer::start().await;
    for kind in Kind::ALL {
        let nodes = nodes(&server).await;
        let source = Source::new(Duration::from_millis(2));
        let policy = Policy { local_ttl: Duration::from_secs(60), ..policy() };
        let begun = Instant::now();
        let seen = Arc::new(Seen {
            here: [0.into(), 0.into()],
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
                        assert_eq!(cache.invalidate(&[KEY]).await, Delivery::Done);
                        seen.here[at].fetch_max(now, Ordering::SeqCst);
                        let mut since = seen.since[at].lock().unwrap();
                        *since = (since.0.max(now), Instant::now());
                        continue;
                    }
                    let mut least = seen.here[at].load(Ordering::SeqCst);
                    let there = *seen.since[1 - at].lock().unwrap();
                    if there.1.elapsed() > MESSAGE {
                        least = least.max(there.0);
                    }
                    let got = read(&cache, kind, &policy, &source).await.unwrap().unwrap().version;
                    assert!(got >= least, "{kind}: read {got} after {least} was made known");
                    reads += 1;
                }
                reads
            }));
        }
        tokio::time::sleep(FIRE).await;
        stop.store(true, Ordering::SeqCst);
        let mut reads = 0;
        for task in tasks {
            reads += task.await.unwrap();
        }
        let last = source.change() - 1;
        source.version.store(last, Ordering::SeqCst);
        let changes = last - 1;
        println!("{kind}: {reads} reads, {changes} changes, {} loads", source.loads());
        assert!(reads > 100 && changes > 50, "{kind}: too little happened");
        for cache in &nodes {
            eventually("the last change is seen", async || {
                version(cache, kind, &policy, &source).await == Some(last)
            })
            .await;
        }
        for cache in &nodes {
            // And it is what stays.
            assert_eq!(version(cache, kind, &policy, &source).await, Some(last), "{kind}");
            assert_eq!(cache.invalidate(&[KEY]).await, Delivery::Done);
        }
    }
}
