//! Ids against a real Redis: unique and rising under many tasks, over midnight, after the counter was lost, and on a node
//! whose clock steps.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use chrono::NaiveDateTime;
use redis::AsyncCommands;
use seckill::id::{EPOCH_SECONDS, IdGenerator, SEQUENCE_BITS};
use seckill::keys::{KeyStyle, Keys};

use crate::support::eventually;
use testkit::redis_server::RedisServer;

/// A local time two seconds before midnight.
fn before_midnight() -> i64 {
    "2026-07-01T23:59:58"
        .parse::<NaiveDateTime>()
        .unwrap()
        .and_utc()
        .timestamp()
}

async fn node(server: &RedisServer, seconds: Arc<AtomicI64>, block: u32) -> Arc<IdGenerator> {
    node_with(
        server,
        move || seconds.load(Ordering::Relaxed),
        block,
        Duration::from_secs(5),
    )
    .await
}

/// As [`node`], with this clock and this time limit for a command.
async fn node_with(
    server: &RedisServer,
    clock: impl Fn() -> i64 + Send + Sync + 'static,
    block: u32,
    limit: Duration,
) -> Arc<IdGenerator> {
    let server = seckill::connection::redis::server(&server.url().into(), None, None).unwrap();
    let redis = seckill::connection::redis::connect(server, limit)
        .await
        .unwrap()
        .commands();
    Arc::new(IdGenerator::new(
        redis,
        Arc::new(clock),
        Keys::new(KeyStyle::Default),
        block,
    ))
}

/// 300 tasks generate 100 ids each; every task's ids rise.
async fn generate(nodes: &[Arc<IdGenerator>]) -> Vec<i64> {
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..300 {
        let ids = nodes[task % nodes.len()].clone();
        tasks.spawn(async move {
            let mut task_ids = Vec::new();
            for _ in 0..100 {
                task_ids.push(ids.next().await.unwrap());
                tokio::task::yield_now().await;
            }
            assert!(task_ids.is_sorted_by(|a, b| a < b), "a task's ids fall");
            task_ids
        });
    }
    tasks.join_all().await.concat()
}

fn assert_unique(ids: &[i64]) {
    let unique: HashSet<_> = ids.iter().collect();
    assert_eq!(unique.len(), ids.len(), "ids repeat");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_of_many_tasks_on_two_nodes_are_unique_and_rise_over_midnight() {
    let server = RedisServer::start().await;
    // The clock advances by a second with every ten thousand readings; a node reads it for each of the 60,000 ids.
    let readings = Arc::new(AtomicI64::new(0));
    let node = async || {
        let readings = readings.clone();
        let clock = move || before_midnight() + readings.fetch_add(1, Ordering::Relaxed) / 10_000;
        node_with(&server, clock, 64, Duration::from_secs(5)).await
    };
    // The first lease of a day sets its counter to a random number. Both days lease before the test sets it.
    let days = [before_midnight(), before_midnight() + 2];
    for day in days.into_iter().chain(days) {
        node_with(&server, move || day, 1, Duration::from_secs(5))
            .await
            .next()
            .await
            .unwrap();
    }
    let nodes = [node().await, node().await];
    // So far apart that every number shows which day's counter it came from.
    let days = [
        ("icr:order:2026:07:01", 1_000_000),
        ("icr:order:2026:07:02", 5_000_000),
    ];
    let _: () = server.conn().await.mset(&days).await.unwrap();
    let mut ids = generate(&nodes).await;
    ids.extend(generate(&nodes).await);
    assert_unique(&ids);
    let mut keys: Vec<String> = server.conn().await.keys("icr:*").await.unwrap();
    keys.sort();
    assert_eq!(keys, ["icr:order:2026:07:01", "icr:order:2026:07:02"]);
    // The number in an id comes from the counter of the day in that id.
    let midnight = before_midnight() + 2 - 1_640_995_200;
    for (day, begin) in days {
        let counter: i64 = server.conn().await.get(day).await.unwrap();
        let is_second_day = day.ends_with("02");
        let numbers = ids
            .iter()
            .filter(|id| ((*id >> 32) >= midnight) == is_second_day);
        let numbers: Vec<i64> = numbers.map(|id| id & 0xffff_ffff).collect();
        let strange: Vec<_> = numbers
            .iter()
            .filter(|number| !(begin + 1..=counter).contains(number))
            .collect();
        assert!(!numbers.is_empty(), "{day}");
        assert!(
            strange.is_empty(),
            "{day}, counter {begin} to {counter}: {strange:?}"
        );
    }
}

/// The clock stands still, and the counter gives the same number again and again.
#[tokio::test]
async fn ids_rise_after_the_counter_was_lost() {
    let server = RedisServer::start().await;
    let clock = Arc::new(AtomicI64::new(before_midnight() - 40_000));
    let ids = node(&server, clock, 1).await;
    let mut ids_so_far = vec![ids.next().await.unwrap()];
    for _ in 0..3 {
        let _: () = server
            .conn()
            .await
            .set("icr:order:2026:07:01", 41)
            .await
            .unwrap();
        ids_so_far.push(ids.next().await.unwrap());
        assert_eq!(ids_so_far.last().unwrap() & 0xffff_ffff, 42);
    }
    assert!(ids_so_far.is_sorted_by(|a, b| a < b), "{ids_so_far:?}");
}

#[tokio::test]
async fn after_an_abandoned_lease_numbers_come_from_a_new_block() {
    let server = RedisServer::start().await;
    let clock = Arc::new(AtomicI64::new(before_midnight() - 40_000));
    let ids = node(&server, clock.clone(), 100).await;
    // Numbers are counted from where the counter began.
    let begin = (ids.next().await.unwrap() & 0xffff_ffff) - 1;
    let number = |id: Result<i64, _>| (id.unwrap() & 0xffff_ffff) - begin;
    assert_eq!(number(ids.next().await), 2);
    ids.abandon_lease();
    assert_eq!(
        [number(ids.next().await), number(ids.next().await)],
        [101, 102]
    );

    // A block that was being leased at that moment is not used either.
    let other_node = node(&server, clock, 100).await;
    server.pause();
    let mut next = std::pin::pin!(other_node.next());
    tokio::select! {
        biased;
        id = &mut next => panic!("without an answer of Redis: {id:?}"),
        () = std::future::ready(()) => {}
    }
    other_node.abandon_lease();
    server.resume();
    assert_eq!(number(next.await), 301, "201 to 300 were leased before");
}

/// Twenty nodes in one second; before each of them, the counter is lost.
#[tokio::test]
async fn a_lost_counter_does_not_begin_again_with_numbers_that_were_given() {
    let server = RedisServer::start().await;
    let clock = Arc::new(AtomicI64::new(before_midnight()));
    let key = "icr:order:2026:07:01";
    // A missing counter begins at a random number in this range; each node takes two numbers.
    let lower_half = 0..1_i64 << 31;
    let mut ids = Vec::new();
    for _ in 0..20 {
        let ids_of_node = node(&server, clock.clone(), 1).await;
        for _ in 0..2 {
            ids.push(ids_of_node.next().await.unwrap());
        }
        // A Java node's INCR goes on from there.
        let counter: i64 = server.conn().await.get(key).await.unwrap();
        assert_eq!(counter, ids.last().unwrap() & 0xffff_ffff);
        assert!(lower_half.contains(&(counter - 2)), "{counter}");
        let _: () = server.conn().await.del(key).await.unwrap();
    }
    assert_unique(&ids);
}

/// Around midnight the clocks of two nodes show different days.
#[tokio::test]
async fn the_counters_of_two_days_go_on_side_by_side() {
    let server = RedisServer::start().await;
    let clock = |seconds| Arc::new(AtomicI64::new(seconds));
    let today = node(&server, clock(before_midnight()), 1).await;
    let tomorrow = node(&server, clock(before_midnight() + 2), 1).await;
    let mut numbers = Vec::new();
    for node in [&today, &tomorrow].into_iter().cycle().take(6) {
        numbers.push(node.next().await.unwrap() & 0xffff_ffff);
    }
    for (number, next_of_its_day) in numbers.iter().zip(&numbers[2..]) {
        assert_eq!(*next_of_its_day, number + 1, "{numbers:?}");
    }
}

#[tokio::test]
async fn a_clock_that_steps_back_makes_no_id_fall() {
    let server = RedisServer::start().await;
    let clock = Arc::new(AtomicI64::new(before_midnight() + 10));
    let ids = node(&server, clock.clone(), 5).await;
    let mut ids_so_far = Vec::new();
    for step in [0, -3600, 1, -1, 3600] {
        clock.fetch_add(step, Ordering::Relaxed);
        for _ in 0..7 {
            ids_so_far.push(ids.next().await.unwrap());
        }
    }
    assert!(ids_so_far.is_sorted_by(|a, b| a < b), "{ids_so_far:?}");
    let before_2022 = node(&server, Arc::new(AtomicI64::new(1_640_995_199)), 5)
        .await
        .next()
        .await;
    assert!(
        matches!(before_2022, Err(seckill::id::Error::ClockOutOfRange(_))),
        "{before_2022:?}"
    );
}

/// Six callers wait while Redis stands still. One of them asks Redis, and its failure is that of all.
#[tokio::test]
async fn a_lease_that_fails_fails_for_all_who_wait() {
    let server = RedisServer::start().await;
    let key = "icr:order:2026:07:01";
    let ids = node_with(&server, before_midnight, 1, Duration::from_secs(3)).await;
    let first = ids.next().await.unwrap() & 0xffff_ffff;
    server.pause();
    for outcome in futures_util::future::join_all((0..6).map(|_| ids.next())).await {
        assert!(
            matches!(outcome, Err(seckill::id::Error::Unavailable(_))),
            "{outcome:?}"
        );
    }
    server.resume();
    eventually("what was sent is done", || async {
        server.conn().await.get::<_, i64>(key).await.unwrap() > first
    })
    .await;
    assert_eq!(
        ids.next().await.unwrap() & 0xffff_ffff,
        first + 2,
        "more than one was sent"
    );
}

/// A node whose clock is behind takes its seconds from another clock, unless that one cannot be right either.
#[tokio::test]
async fn an_id_is_not_older_than_another_clock_says() {
    let server = RedisServer::start().await;
    let clock = Arc::new(AtomicI64::new(before_midnight()));
    let node = node(&server, clock.clone(), 10).await;
    let seconds_ahead = async |seconds: i64| {
        let now = clock.load(Ordering::Relaxed);
        let id = node.next_not_before(now + seconds).await.unwrap();
        (id >> SEQUENCE_BITS) + EPOCH_SECONDS - now
    };
    assert_eq!(seconds_ahead(-60).await, 0);
    assert_eq!(seconds_ahead(2 * 86_400).await, 0, "a clock two days ahead");
    assert_eq!(seconds_ahead(120).await, 120, "on the next day");
    // Ids of a node rise.
    assert_eq!(seconds_ahead(0).await, 120);
}
