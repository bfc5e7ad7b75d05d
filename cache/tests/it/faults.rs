//! Loads that fail, panic, hang, are abandoned, or die with their process; and the mutex through
//! all of it.

use std::time::{Duration, Instant};

use cache_aside::{CacheConfig, Kind, Policy, ReadError};
use redis::AsyncCommands;

use super::{
    KEY, MUTEX, PATIENCE, Source, Switch, ask, eventually, get, node, node_with, nodes, policy,
    read, version,
};
use crate::support::redis_server::RedisServer;

/// The policies that hold a mutex while they load.
const LOCKING: [Kind; 3] = [Kind::Mutex, Kind::LogicalExpiry, Kind::Layered];

#[tokio::test]
async fn errors_and_panics_reach_all_who_wait_and_free_everything() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    for kind in Kind::ALL {
        let nodes = nodes(&server).await;
        for panics in [false, true] {
            let source = Source::new(Duration::from_millis(30));
            let fault: Switch =
                if panics { |source| &source.panics } else { |source| &source.broken };
            source.set(fault, true);
            let readers: Vec<_> = (0..10)
                .map(|_| {
                    let (cache, source) = (nodes[0].clone(), source.clone());
                    tokio::spawn(async move { read(&cache, kind, &policy(), &source).await })
                })
                .collect();
            for reader in readers {
                match reader.await.expect("readers do not panic") {
                    Err(ReadError::Load(_)) if !panics => {}
                    Err(ReadError::BrokenOff) if panics => {}
                    other => panic!("{kind}: {other:?}"),
                }
            }
            assert_eq!(get(&mut raw, MUTEX).await, None, "{kind}");
            assert_eq!(get(&mut raw, KEY).await, None, "{kind}");
            source.set(fault, false);
            for cache in nodes.iter().rev() {
                let started = Instant::now();
                assert_eq!(version(cache, kind, &policy(), &source).await, Some(1), "{kind}");
                assert!(
                    started.elapsed() < Duration::from_millis(800),
                    "nothing stands in the way"
                );
            }
            let _: i64 = ask(&mut raw, "DEL", &[KEY]).await;
            for cache in &nodes {
                assert_eq!(cache.invalidate(&[KEY]).await, cache_aside::Delivery::Done);
                assert_eq!(cache.stats().loads_running, 0);
            }
        }
    }
}

#[tokio::test]
async fn a_reader_that_goes_away_leaves_the_load_to_the_others() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    for kind in LOCKING {
        let _: () = ask(&mut raw, "FLUSHALL", &[]).await;
        let cache = node(&server).await;
        let source = Source::new(Duration::ZERO);
        source.set(|source| &source.closed, true);
        let start = || {
            let (cache, source) = (cache.clone(), source.clone());
            tokio::spawn(async move { version(&cache, kind, &policy(), &source).await })
        };
        let first = start();
        eventually("it loads", async || source.running() == 1).await;
        let second = start();
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        source.set(|source| &source.closed, false);
        assert_eq!(second.await.unwrap(), Some(1), "{kind}");
        assert_eq!(source.loads(), 1, "{kind}");
        assert_eq!(get(&mut raw, MUTEX).await, None, "{kind}");
        assert!(get(&mut raw, KEY).await.is_some(), "{kind}");
    }
}

#[tokio::test]
async fn a_load_that_hangs_is_given_up() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let limit = Duration::from_millis(200);
    for kind in Kind::ALL {
        let cache =
            node_with(&server, CacheConfig { load_limit: limit, ..Default::default() }).await;
        let source = Source::new(Duration::ZERO);
        source.set(|source| &source.closed, true);
        let started = Instant::now();
        let answer = read(&cache, kind, &policy(), &source).await;
        assert!(matches!(answer, Err(ReadError::TimedOut)), "{kind}: {answer:?}");
        assert!(started.elapsed() < limit * 3, "{kind}: {:?}", started.elapsed());
        assert_eq!(get(&mut raw, MUTEX).await, None, "{kind}");
        assert_eq!(source.running(), 0, "{kind}: it is not left running");
    }
}

/// The holder of the mutex is gone, and its key lasts ten seconds.
#[tokio::test]
async fn a_dead_holder_stalls_readers_for_the_wait_limit_only() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    for kind in LOCKING {
        let _: () = ask(&mut raw, "FLUSHALL", &[]).await;
        let cache = node(&server).await;
        let policy = Policy { wait_limit: Duration::from_millis(200), ..policy() };
        let source = Source::new(Duration::ZERO);
        let _: String = ask(&mut raw, "SET", &[MUTEX, "a dead one", "PX", "10000"]).await;
        let started = Instant::now();
        assert_eq!(version(&cache, kind, &policy, &source).await, Some(1), "{kind}");
        let took = started.elapsed();
        assert!((200..1500).contains(&took.as_millis()), "{kind}: {took:?}");
        assert_eq!(get(&mut raw, MUTEX).await.as_deref(), Some("a dead one"), "not ours to remove");
        assert!(
            get(&mut raw, KEY).await.is_some(),
            "{kind}: stored, so that the next need not wait"
        );
        // Bounded looking, not spinning: some tens of looks in 200 ms.
        let waits = policy.stats().waits;
        assert!((5..100).contains(&waits), "{kind}: {waits} looks");
    }
}

/// A process that ends while it loads: its runtime is shut down in the middle.
#[test]
fn a_process_that_dies_while_it_loads_is_survived() {
    let survivors = tokio::runtime::Runtime::new().unwrap();
    let server = survivors.block_on(RedisServer::start());
    let source = Source::new(Duration::ZERO);
    source.set(|source| &source.closed, true);
    let dying = tokio::runtime::Runtime::new().unwrap();
    let cache = dying.block_on(node(&server));
    dying.spawn({
        let source = source.clone();
        async move { read(&cache, Kind::Layered, &policy(), &source).await }
    });
    survivors.block_on(eventually("it loads", async || source.running() == 1));
    dying.shutdown_timeout(PATIENCE);
    survivors.block_on(async {
        let mut raw = server.conn().await;
        let orphan = get(&mut raw, MUTEX).await;
        assert!(orphan.is_some(), "the mutex has outlived its holder");
        source.set(|source| &source.closed, false);
        let cache = node(&server).await;
        let started = Instant::now();
        assert_eq!(version(&cache, Kind::Layered, &policy(), &source).await, Some(1));
        assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
        assert_eq!(get(&mut raw, MUTEX).await, orphan);
    });
}

#[tokio::test]
async fn a_waiter_never_removes_the_holders_mutex() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    for kind in LOCKING {
        let _: () = ask(&mut raw, "FLUSHALL", &[]).await;
        let [holder, waiter] = nodes(&server).await;
        let source = Source::new(Duration::ZERO);
        let impatient = Policy { wait_limit: Duration::from_millis(50), ..policy() };
        source.set(|source| &source.closed, true);
        let slow = tokio::spawn({
            let source = source.clone();
            async move { version(&holder, kind, &policy(), &source).await }
        });
        eventually("the mutex is held", async || source.running() == 1).await;
        let owner = get(&mut raw, MUTEX).await;
        assert!(owner.is_some());
        // The waiter gives up waiting, loads, and is done, and so is one whose load fails.
        let other = Source::new(Duration::ZERO);
        assert_eq!(version(&waiter, kind, &impatient, &other).await, Some(1), "{kind}");
        assert_eq!(get(&mut raw, MUTEX).await, owner, "{kind}");
        let _: i64 = ask(&mut raw, "DEL", &[KEY]).await;
        let waiter = node(&server).await;
        other.set(|source| &source.broken, true);
        assert!(read(&waiter, kind, &impatient, &other).await.is_err());
        assert_eq!(get(&mut raw, MUTEX).await, owner, "{kind}");
        source.set(|source| &source.closed, false);
        assert_eq!(slow.await.unwrap(), Some(1), "{kind}");
        assert_eq!(get(&mut raw, MUTEX).await, None, "{kind}: the holder removed it");
    }
}

#[tokio::test]
async fn a_mutex_that_expired_is_not_taken_from_its_next_owner() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    for fails in [false, true] {
        let _: () = ask(&mut raw, "FLUSHALL", &[]).await;
        let cache = node(&server).await;
        let source = Source::new(Duration::ZERO);
        source.set(|source| &source.closed, true);
        source.set(|source| &source.broken, fails);
        let slow = tokio::spawn({
            let (cache, source) = (cache.clone(), source.clone());
            async move { read(&cache, Kind::Mutex, &policy(), &source).await }
        });
        eventually("the mutex is held", async || source.running() == 1).await;
        let _: String = ask(&mut raw, "SET", &[MUTEX, "the next owner"]).await;
        source.set(|source| &source.closed, false);
        assert_eq!(slow.await.unwrap().is_err(), fails);
        assert_eq!(get(&mut raw, MUTEX).await.as_deref(), Some("the next owner"));
    }
}

/// Whoever wins the mutex looks again before it loads.
#[tokio::test]
async fn what_was_stored_while_waiting_for_the_mutex_is_not_loaded_again() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    for kind in LOCKING {
        let _: () = ask(&mut raw, "FLUSHALL", &[]).await;
        let cache = node(&server).await;
        let (source, policy) = (Source::new(Duration::ZERO), policy());
        let _: String = ask(&mut raw, "SET", &[MUTEX, "somebody"]).await;
        let reader = tokio::spawn({
            let (cache, policy, source) = (cache.clone(), policy.clone(), source.clone());
            async move { version(&cache, kind, &policy, &source).await }
        });
        eventually("it waits", async || policy.stats().waits > 0).await;
        let _: () = redis::pipe()
            .atomic()
            .set(KEY, r#"{"id":1,"version":9}"#)
            .del(MUTEX)
            .query_async(&mut raw)
            .await
            .unwrap();
        assert_eq!(reader.await.unwrap(), Some(9), "{kind}");
        assert_eq!(source.loads(), 0, "{kind}");
        assert_eq!(get(&mut raw, MUTEX).await, None, "{kind}");
    }
}

/// Ten thousand waits in a row do not deepen any stack: waiting is a loop.
#[tokio::test]
async fn long_waits_are_loops() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let cache = node(&server).await;
    let (source, limit) = (Source::new(Duration::ZERO), Duration::from_secs(2));
    let policy = Policy { wait_limit: limit, ..policy() };
    let _: String = ask(&mut raw, "SET", &[MUTEX, "somebody"]).await;
    let _: i64 = raw.del(KEY).await.unwrap();
    let started = Instant::now();
    assert_eq!(version(&cache, Kind::Mutex, &policy, &source).await, Some(1));
    assert!(started.elapsed() >= limit && policy.stats().waits >= 100, "{:?}", policy.stats());
}
