//! The cache under a concurrency explorer: callers that share reads, perhaps give up, and changes of the source with
//! their invalidations. Who asks after an invalidation gets what was read after it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use shuttle::future::{block_on, spawn, yield_now};

use super::FreshCache;
use crate::sync::explored::{explore, some_time, unless_dropped};

/// A bug in the invalidation, to see that the explorer finds it.
#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    /// The kept value is cleared, and its entry stays: a read that is under way puts an old value there.
    ClearsTheValue,
}

struct World {
    cache: FreshCache<u32, u64, ()>,
    version: AtomicU64,
    /// The latest version whose invalidation is complete.
    invalidated: AtomicU64,
    reading: AtomicU32,
}

async fn read(world: &World) -> Result<u64, ()> {
    let others = world.reading.fetch_add(1, Ordering::SeqCst);
    some_time(4).await;
    let version = world.version.load(Ordering::SeqCst);
    some_time(4).await;
    world.reading.fetch_sub(1, Ordering::SeqCst);
    // One before each invalidation, and one after them.
    assert!(others <= 2, "{others} others read");
    Ok(version)
}

async fn invalidate(world: &World, bug: Bug) {
    if bug == Bug::ClearsTheValue {
        if let Some(entry) = world.cache.entries.get(&1) {
            *entry.last.write() = None;
        }
    } else {
        world.cache.invalidate(&1);
    }
    yield_now().await;
}

async fn change(world: Arc<World>, bug: Bug) {
    for version in 1..=2 {
        some_time(10).await;
        world.version.store(version, Ordering::SeqCst);
        yield_now().await;
        invalidate(&world, bug).await;
        world.invalidated.store(version, Ordering::SeqCst);
    }
}

fn run(bug: Bug) {
    block_on(async move {
        let world = Arc::new(World {
            cache: FreshCache::new(Duration::from_secs(3600), 8),
            version: AtomicU64::new(0),
            invalidated: AtomicU64::new(0),
            reading: AtomicU32::new(0),
        });
        let mut tasks = vec![spawn(change(world.clone(), bug))];
        for _ in 0..4 {
            let world = world.clone();
            tasks.push(spawn(async move {
                for _ in 0..3 {
                    some_time(6).await;
                    let at_least = world.invalidated.load(Ordering::SeqCst);
                    let got = world.cache.get(1, async || read(&world).await).await;
                    assert!(got >= Ok(at_least), "{got:?} after {at_least} was invalidated");
                }
            }));
        }
        for task in tasks {
            task.await.expect("it ran to its end");
        }
    });
}

/// A caller that gives up leaves the read to the next of those who wait.
fn run_with_a_caller_that_gives_up() {
    block_on(async {
        let cache = FreshCache::<u32, u64, ()>::new(Duration::from_secs(3600), 8);
        let callers: Vec<_> = (0..4)
            .map(|number| {
                let cache = cache.clone();
                spawn(async move {
                    some_time(6).await;
                    let read = async || {
                        some_time(6).await;
                        Ok(7)
                    };
                    let got = unless_dropped(cache.get(1, read), number < 2).await;
                    assert!(matches!(got, None | Some(Ok(7))), "{got:?}");
                })
            })
            .collect();
        for caller in callers {
            caller.await.expect("it ran to its end");
        }
    });
}

#[test]
fn no_value_from_before_an_invalidation_is_given_after_it() {
    explore(false, || run(Bug::None));
}

#[test]
fn a_caller_that_gives_up_leaves_none_waiting() {
    explore(false, run_with_a_caller_that_gives_up);
}

#[test]
#[should_panic(expected = "was invalidated")]
fn an_invalidation_that_spares_a_read_under_way_is_found() {
    explore(true, || run(Bug::ClearsTheValue));
}
