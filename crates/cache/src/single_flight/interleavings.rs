//! Single-flight and the stamps of the cache in memory under a concurrency explorer (shuttle). Readers share
//! loads, and one of them is dropped half-way; loads fail; the source changes and is invalidated. Thousands
//! of interleavings of these are tried. The reader does what `strategies` does, without Redis.
//!
//! The mutex is the explorer's: at each of its operations other tasks may run first. A call of the cache in
//! memory or of tokio's channels is one step, which nothing interrupts.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use shuttle::future::{block_on, spawn, yield_now};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Mutex;
use shuttle::{check_pct, check_random};

use super::{Leader, SingleFlight};
use crate::error::ReadError;
use crate::local_cache::{LocalCache, VersionStamp};
use crate::value::CachedValue;

const KEY: &str = "a";
const HOUR: Duration = Duration::from_secs(3600);

/// Interleavings that a test explores, half of them chosen at random, half by priorities (PCT).
const RUNS: usize = 1_500;

/// The same for a test that plants a bug: at most, since it ends as soon as the bug is found.
const RUNS_WITH_A_BUG: usize = 10_000;

/// A bug in the reader, to see that the explorer finds it.
#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    /// A load is joined whatever was invalidated since it began.
    JoinsAnyFlight,
    /// A value is kept in memory under a stamp that is taken after its load, not before.
    StampsAfterTheLoad,
    /// A load that was given up keeps its flight.
    KeepsTheFlight,
}

struct World {
    group: Arc<SingleFlight>,
    local: LocalCache,
    /// The stamp before any change.
    initial_stamp: VersionStamp,
    source: Mutex<Source>,
}

#[derive(Default)]
struct Source {
    version: u64,
    /// The latest version whose invalidation is complete: later readers must see it.
    invalidated: u64,
    /// Stamps of the loads that run.
    loading: Vec<VersionStamp>,
}

async fn read(world: Arc<World>, bug: Bug) {
    let at_least = world.source.lock().unwrap().invalidated;
    let stamp = world.local.stamp(KEY);
    let value = if let Some(Some(hit)) = world.local.get::<u64>(KEY) {
        hit
    } else {
        let join_stamp = if bug == Bug::JoinsAnyFlight {
            world.initial_stamp
        } else {
            stamp
        };
        let (leader, follower) = world.group.join::<u64, ()>(KEY, join_stamp);
        if let Some(leader) = leader {
            // A task of its own: the load goes on when its reader is dropped.
            spawn(lead(world.clone(), leader, stamp, bug));
        }
        match follower.wait().await {
            Ok(loaded) => loaded.expect("the row exists"),
            Err(_) => return,
        }
    };
    assert!(
        **value >= at_least,
        "read {} after {at_least} was invalidated",
        **value
    );
}

async fn lead(world: Arc<World>, leader: Leader<u64, ()>, stamp: VersionStamp, bug: Bug) {
    begin_load(&world, stamp);
    some_time().await;
    let version = world.source.lock().unwrap().version;
    some_time().await;
    world
        .source
        .lock()
        .unwrap()
        .loading
        .retain(|loading| *loading != stamp);
    if thread_rng().gen_bool(0.2) {
        // A panic, or the end of the process.
        if bug == Bug::KeepsTheFlight {
            std::mem::forget(leader);
        }
        return;
    }
    let value = CachedValue::new(version);
    let value_stamp = if bug == Bug::StampsAfterTheLoad {
        world.local.stamp(KEY)
    } else {
        stamp
    };
    world.local.put(KEY, value_stamp, Some(&value), HOUR);
    leader.complete(Ok(Some(value)));
}

fn begin_load(world: &World, stamp: VersionStamp) {
    let mut source = world.source.lock().unwrap();
    // Under the current stamp one load runs at a time. Under an older one there may be two: a reader that took the stamp
    // long ago finds no flight to join any more.
    let is_current = stamp == world.local.stamp(KEY);
    let is_second_load = is_current && source.loading.contains(&stamp);
    assert!(!is_second_load, "two loads under the current stamp");
    source.loading.push(stamp);
}

async fn change(world: Arc<World>) {
    for version in 1..=2 {
        some_time().await;
        world.source.lock().unwrap().version = version;
        yield_now().await;
        world.local.invalidate(KEY);
        world.source.lock().unwrap().invalidated = version;
    }
}

/// A reader that reads to its end, or one that is dropped after a few polls.
async fn reader(world: Arc<World>, bug: Bug, dropped: bool) {
    for _ in 0..3 {
        some_time().await;
        let mut polls = if dropped {
            thread_rng().gen_range(1..4)
        } else {
            usize::MAX
        };
        let mut reading = Box::pin(read(world.clone(), bug));
        std::future::poll_fn(|cx| {
            polls -= 1;
            match reading.as_mut().poll(cx) {
                Poll::Pending if polls > 0 => Poll::Pending,
                _ => Poll::Ready(()),
            }
        })
        .await;
    }
}

fn run(bug: Bug) {
    block_on(async move {
        let local = LocalCache::new(16);
        local.enable();
        let initial_stamp = local.stamp(KEY);
        let world = Arc::new(World {
            group: Arc::default(),
            local,
            initial_stamp,
            source: Mutex::default(),
        });
        let mut tasks: Vec<_> = (0..4)
            .map(|i| spawn(reader(world.clone(), bug, i == 0)))
            .collect();
        tasks.push(spawn(change(world.clone())));
        for task in tasks {
            task.await.expect("it ran to its end");
        }
        // The loads whose readers were dropped have to end, too.
        while !world.source.lock().unwrap().loading.is_empty()
            || !world.group.lock().by_key.is_empty()
        {
            yield_now().await;
        }
    });
}

/// Lets other tasks take a few steps.
async fn some_time() {
    for _ in 0..thread_rng().gen_range(1..10) {
        yield_now().await;
    }
}

fn explore(bug: Bug) {
    let runs = if bug == Bug::None {
        RUNS
    } else {
        RUNS_WITH_A_BUG
    };
    check_random(move || run(bug), runs / 2);
    check_pct(move || run(bug), runs / 2, 3);
}

#[test]
fn no_reader_gets_an_old_value_and_loads_are_shared() {
    explore(Bug::None);
}

#[test]
fn nobody_joins_a_load_that_has_ended() {
    check_random(join_after_a_failed_load, RUNS);
}

fn join_after_a_failed_load() {
    block_on(async {
        let group = Arc::<SingleFlight>::default();
        let stamp = LocalCache::new(16).stamp(KEY);
        let (leader, follower) = group.join::<u64, ()>(KEY, stamp);
        let leader = leader.expect("the first one leads");
        let load = spawn(async move { leader.complete(Err(ReadError::Aborted)) });
        assert!(follower.wait().await.is_err());
        let (leader, _) = group.join::<u64, ()>(KEY, stamp);
        assert!(leader.is_some(), "joined a load that had ended");
        load.await.expect("it ran to its end");
    });
}

#[test]
#[should_panic(expected = "was invalidated")]
fn joining_a_load_from_before_an_invalidation_is_found() {
    explore(Bug::JoinsAnyFlight);
}

#[test]
#[should_panic(expected = "was invalidated")]
fn a_stamp_that_is_taken_after_the_load_is_found() {
    explore(Bug::StampsAfterTheLoad);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_flight_that_outlives_its_load_is_found() {
    explore(Bug::KeepsTheFlight);
}
