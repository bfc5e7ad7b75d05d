//! Many shop reads over HTTP, from two instances, while Redis is killed and comes back.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cache::CacheConfig;
use futures_util::future::join_all;
use sqlx::Executor;
use workload::Target;
use workload::http::{Call, Connection};

use crate::metrics::page::Page;
use crate::support::api::get;
use crate::support::database::TestDatabase;
use crate::support::stack::Stack;
use crate::support::{PATIENCE, eventually};

/// Steady readers, so few that all may load at once, and the shops that they read.
const READERS: usize = 20;
const SHOPS: usize = 60;

/// The pause of a reader after each answer, which leaves the machine time for the rest.
const PAUSE: Duration = Duration::from_millis(30);

/// Reads one shop after the other; counts the answers, and names those that are no shop in `failures`.
async fn read(
    target: Target,
    reader: usize,
    answers: &AtomicU64,
    over: &AtomicBool,
) -> Vec<String> {
    let mut connection = Connection::new(target, PATIENCE);
    let mut failures = Vec::new();
    for turn in 0.. {
        if over.load(Ordering::Relaxed) {
            break;
        }
        let shop = 1 + (turn * READERS + reader) % SHOPS;
        let reply = connection.send(&Call::get(format!("/shop/{shop}"))).await;
        let found = reply.as_ref().is_ok_and(|reply| {
            reply.status == 200 && String::from_utf8_lossy(&reply.body).contains("\"success\":true")
        });
        if !found {
            failures.push(format!("shop {shop}: {reply:?}"));
        }
        answers.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(PAUSE).await;
    }
    failures
}

/// Waits until every instance says that its breaker is open, or closed.
async fn breakers_are(urls: &[String], open: f64) {
    for url in urls {
        eventually("the breaker opens, or closes", async || {
            Page::of(url).await.get("seckill_cache_breaker_open", &[]) == open
        })
        .await;
    }
}

/// Every instance is asked for more shops than it may load at once, and each load is held up: as many run as are allowed,
/// and no more. What waits too long is refused.
async fn loads_are_bounded(database: &TestDatabase, urls: &[String]) {
    let allowed = CacheConfig::default().max_concurrent_loads;
    let mut holder = database.pool.acquire().await.expect("a connection");
    holder.execute("LOCK TABLES tb_shop WRITE").await.expect("lock the table");
    let asking = urls.iter().flat_map(|url| {
        (0..2 * allowed).map(move |n| get(url, &format!("/shop/{}", 1 + SHOPS + n)).send())
    });
    let running = async || {
        let statements = database.running().await;
        statements.iter().filter(|statement| statement.contains("FROM tb_shop")).count()
    };
    let watching = async {
        let limit = allowed * urls.len();
        eventually("as many load as may", async || running().await >= limit).await;
        for _ in 0..50 {
            let running = running().await;
            assert!(running <= limit, "{running} statements at once, {limit} allowed");
        }
        holder.execute("UNLOCK TABLES").await.expect("unlock the table");
    };
    for answer in tokio::join!(join_all(asking), watching).0 {
        assert!(answer.status == 200 || answer.body["code"] == "UNAVAILABLE", "{answer:?}");
    }
}

/// Has shops read on all instances while `work` runs, which gets the count of the answers; no read may fail.
async fn while_reading(targets: &[Target], work: impl AsyncFnOnce(&AtomicU64)) {
    let (answers, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let reading = (0..READERS).map(|reader| {
        let target = targets[reader % targets.len()].clone();
        read(target, reader, &answers, &over)
    });
    let working = async {
        work(&answers).await;
        over.store(true, Ordering::Relaxed);
    };
    let failures = tokio::join!(join_all(reading), working).0.concat();
    assert!(failures.is_empty(), "{} failed: {:?} …", failures.len(), &failures[..1]);
}

/// Waits for so many answers more.
async fn more(answers: &AtomicU64, count: u64) {
    let wanted = answers.load(Ordering::Relaxed) + count;
    eventually("reads are answered", async || answers.load(Ordering::Relaxed) >= wanted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_killed_during_reads_fails_no_read_and_is_used_again_after_its_return() {
    let mut stack = Stack::start(0, &[]).await;
    let shops = SHOPS + 2 * CacheConfig::default().max_concurrent_loads;
    let rows: Vec<String> =
        (2..=shops).map(|shop| format!("({shop}, '店', 1, '', '', 1, 1)")).collect();
    let insert = "INSERT INTO tb_shop (id, name, type_id, images, address, x, y) VALUES ";
    stack.database.run(&(insert.to_owned() + &rows.join(","))).await;
    // More than may load at once.
    for _ in 0..2 {
        stack.add_instance(&["--read-connections", "40"]).await;
    }
    let (urls, targets) = (stack.urls(), stack.targets());
    while_reading(&targets, async |answers| {
        more(answers, 400).await;
        stack.redis.kill();
        breakers_are(&urls, 1.0).await;
        more(answers, 400).await;
    })
    .await;
    loads_are_bounded(&stack.database, &urls).await;
    while_reading(&targets, async |answers| {
        stack.redis.restart().await;
        breakers_are(&urls, 0.0).await;
        for url in &urls {
            let count = async || {
                let page = Page::of(url).await;
                let memory = [("cache", "shop"), ("layer", "memory")];
                let hits = page.get("seckill_cache_hits_total", &memory);
                (hits, page.get("seckill_cache_loads_total", &[("cache", "shop")]))
            };
            eventually("memory answers again, without loads", async || {
                let (hits, loads) = count().await;
                more(answers, 100).await;
                let (hits_after, loads_after) = count().await;
                hits_after > hits && loads_after == loads
            })
            .await;
        }
    })
    .await;
}
