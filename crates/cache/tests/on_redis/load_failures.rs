//! Loads that fail, panic, hang or are dropped, and what happens to the mutex.

use std::time::{Duration, Instant};

use cache_aside::{Cache, CacheConfig, CachePolicy, ReadError, ReadStrategy};

use super::{
    KEY, MUTEX, Source, Switch, WAIT_LIMIT, command, eventually, flush, get, node, node_with,
    nodes, patient, policy, read, redis_at, redis_server, spawn_version, version,
};
use testkit::proxy::{Mode, Proxy};

/// The strategies that hold a mutex while they load.
const WITH_MUTEX: [ReadStrategy; 3] = [
    ReadStrategy::Mutex,
    ReadStrategy::LogicalExpiry,
    ReadStrategy::Layered,
];

#[tokio::test]
async fn errors_and_panics_reach_every_waiter_and_release_the_mutex() {
    let (server, mut raw) = redis_server().await;
    for strategy in ReadStrategy::ALL {
        let nodes = nodes(&server).await;
        for panics in [false, true] {
            let source = Source::new(Duration::from_millis(30));
            let failure: Switch = if panics {
                |source| &source.panics
            } else {
                |source| &source.broken
            };
            source.set(failure, true);
            let readers: Vec<_> = (0..10)
                .map(|_| {
                    let cache = nodes[0].clone();
                    let source = source.clone();
                    tokio::spawn(async move { read(&cache, strategy, &policy(), &source).await })
                })
                .collect();
            for reader in readers {
                match reader.await.expect("readers do not panic") {
                    Err(ReadError::Load(_)) if !panics => {}
                    Err(ReadError::Aborted) if panics => {}
                    other => panic!("{strategy}: {other:?}"),
                }
            }
            assert_eq!(get(&mut raw, MUTEX).await, None, "{strategy}");
            assert_eq!(get(&mut raw, KEY).await, None, "{strategy}");
            source.set(failure, false);
            for cache in nodes.iter().rev() {
                let policy = policy();
                assert_eq!(
                    version(cache, strategy, &policy, &source).await,
                    Some(1),
                    "{strategy}"
                );
                assert_eq!(
                    policy.stats().waits,
                    0,
                    "{strategy}: nothing delays the next load"
                );
            }
            let _: i64 = command(&mut raw, "DEL", &[KEY]).await;
            for cache in &nodes {
                assert_eq!(
                    cache.invalidate(&[KEY]).await,
                    cache_aside::InvalidationStatus::Delivered
                );
                assert_eq!(cache.stats().loads_running, 0);
            }
        }
    }
}

#[tokio::test]
async fn dropping_a_reader_does_not_cancel_the_load_of_the_others() {
    let (server, mut raw) = redis_server().await;
    for strategy in WITH_MUTEX {
        flush(&mut raw).await;
        let cache = node(&server).await;
        let source = Source::closed();
        let start = || spawn_version(&cache, strategy, &policy(), &source);
        let first = start();
        eventually("the load runs", async || source.running() == 1).await;
        let second = start();
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        source.open();
        assert_eq!(second.await.unwrap(), Some(1), "{strategy}");
        assert_eq!(source.loads(), 1, "{strategy}");
        assert_eq!(get(&mut raw, MUTEX).await, None, "{strategy}");
        assert!(get(&mut raw, KEY).await.is_some(), "{strategy}");
    }
}

#[tokio::test]
async fn a_load_that_hangs_times_out() {
    let (server, mut raw) = redis_server().await;
    let limit = Duration::from_millis(200);
    for strategy in ReadStrategy::ALL {
        let config = CacheConfig {
            load_timeout: limit,
            ..CacheConfig::default()
        };
        let cache = node_with(&server, config).await;
        let source = Source::closed();
        let answer = read(&cache, strategy, &policy(), &source).await;
        assert!(
            matches!(answer, Err(ReadError::TimedOut)),
            "{strategy}: {answer:?}"
        );
        assert_eq!(get(&mut raw, MUTEX).await, None, "{strategy}");
        assert_eq!(source.running(), 0, "{strategy}: the load was dropped");
    }
}

/// The owner of the mutex is dead.
#[tokio::test]
async fn a_dead_mutex_owner_delays_readers_for_the_wait_timeout_only() {
    let (server, mut raw) = redis_server().await;
    for strategy in WITH_MUTEX {
        flush(&mut raw).await;
        let cache = node(&server).await;
        let limit = Duration::from_millis(200);
        let policy = CachePolicy {
            wait_timeout: limit,
            ..policy()
        };
        let source = Source::new(Duration::ZERO);
        let _: String = command(&mut raw, "SET", &[MUTEX, "dead owner"]).await;
        let started = Instant::now();
        assert_eq!(
            version(&cache, strategy, &policy, &source).await,
            Some(1),
            "{strategy}"
        );
        assert!(
            started.elapsed() >= limit,
            "{strategy}: {:?}",
            started.elapsed()
        );
        assert_eq!(
            get(&mut raw, MUTEX).await.as_deref(),
            Some("dead owner"),
            "another owner's mutex is kept"
        );
        assert!(
            get(&mut raw, KEY).await.is_some(),
            "{strategy}: stored, so that the next reader does not wait"
        );
        // Polling with pauses of 3 ms at the least, not spinning.
        let waits = u128::from(policy.stats().waits);
        let max_polls = started.elapsed().as_millis() / 3;
        assert!(
            (1..=max_polls).contains(&waits),
            "{strategy}: {waits} polls"
        );
    }
}

#[tokio::test]
async fn an_expired_mutex_is_not_released_for_its_next_owner() {
    let (server, mut raw) = redis_server().await;
    for fails in [false, true] {
        flush(&mut raw).await;
        let cache = node(&server).await;
        let source = Source::closed();
        source.set(|source| &source.broken, fails);
        let slow = tokio::spawn({
            let cache = cache.clone();
            let source = source.clone();
            async move { read(&cache, ReadStrategy::Mutex, &policy(), &source).await }
        });
        eventually("the mutex is held", async || source.running() == 1).await;
        let _: String = command(&mut raw, "SET", &[MUTEX, "the next owner"]).await;
        source.open();
        assert_eq!(slow.await.unwrap().is_err(), fails);
        assert_eq!(
            get(&mut raw, MUTEX).await.as_deref(),
            Some("the next owner")
        );
    }
}

/// A reader that acquires the mutex checks again before it loads.
#[tokio::test]
async fn a_value_stored_while_waiting_for_the_mutex_is_not_loaded_again() {
    let (server, mut raw) = redis_server().await;
    for strategy in WITH_MUTEX {
        flush(&mut raw).await;
        let cache = node(&server).await;
        let source = Source::new(Duration::ZERO);
        let policy = policy();
        let _: String = command(&mut raw, "SET", &[MUTEX, "another owner"]).await;
        let reader = spawn_version(&cache, strategy, &policy, &source);
        eventually("the reader waits", async || policy.stats().waits > 0).await;
        let _: () = redis::pipe()
            .atomic()
            .set(KEY, r#"{"id":1,"version":9}"#)
            .del(MUTEX)
            .query_async(&mut raw)
            .await
            .unwrap();
        assert_eq!(reader.await.unwrap(), Some(9), "{strategy}");
        assert_eq!(source.loads(), 0, "{strategy}");
        assert_eq!(get(&mut raw, MUTEX).await, None, "{strategy}");
    }
}

/// The mutex was taken, but no reader knows that it holds it. Readers must not wait until it expires.
#[tokio::test]
async fn a_mutex_whose_reply_was_lost_is_released() {
    let (server, mut raw) = redis_server().await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let cache = Cache::new(&redis_at(proxy.redis()), patient());
    let source = Source::new(Duration::ZERO);
    let policy = CachePolicy {
        mutex_ttl: WAIT_LIMIT * 10,
        ..policy()
    };
    // Loads the scripts, so that the reply is that of the script itself.
    version(&cache, ReadStrategy::Mutex, &policy, &source).await;
    let _status = cache.invalidate(&[KEY]).await;
    proxy.set(Mode::LoseReplyToThenCut(MUTEX));
    let read = version(&cache, ReadStrategy::Mutex, &policy, &source).await;
    assert_eq!(read, Some(1));
    assert!(get(&mut raw, MUTEX).await.is_some(), "it was not taken");
    proxy.set(Mode::Forward);
    eventually("it is released", async || {
        get(&mut raw, MUTEX).await.is_none()
    })
    .await;
}
