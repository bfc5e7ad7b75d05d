//! Ids per second of the generator with leased blocks, compared with one INCR per id: `cargo bench --bench ids`.
//!
//! 64 tasks of the generator and 64 clients of redis-benchmark take turns on a Redis that nothing else uses.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::Context;
use seckill::clock::Zone;
use seckill::connection::redis;
use seckill::id::IdGenerator;
use seckill::keys::{KeyStyle, Keys};
use testkit::redis_server::RedisServer;
use tokio::task::JoinSet;

const ROUNDS: usize = 5;
const ROUND_DURATION: Duration = Duration::from_millis(2500);
const CLIENTS: usize = 64;
const BLOCK: u32 = 1_000;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let server = RedisServer::start().await;
    let mut ratios = Vec::new();
    for _ in 0..ROUNDS {
        let leased = leased_ids_per_second(&server).await?;
        let single = increments_per_second(&server).await?;
        println!(
            "leased {leased:.0}/s, one INCR per id {single:.0}/s: {:.0}",
            leased / single
        );
        ratios.push(leased / single);
    }
    ratios.sort_by(f64::total_cmp);
    let [low, middle, high] = [0, ROUNDS / 2, ROUNDS - 1].map(|index| ratios[index]);
    println!("leased ÷ one INCR per id: {middle:.0} ({low:.0} – {high:.0})");
    Ok(())
}

async fn leased_ids_per_second(server: &RedisServer) -> anyhow::Result<f64> {
    let redis = redis::server(&server.url().into(), None, None)?;
    let redis = redis::connect(redis, Duration::from_secs(1)).await?;
    let clock = Arc::new(Zone(chrono_tz::Asia::Shanghai).seconds());
    let keys = Keys::new(KeyStyle::Default);
    let ids = Arc::new(IdGenerator::new(redis.commands(), clock, keys, BLOCK));
    let is_over = Arc::new(AtomicBool::new(false));
    let count = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    let begin = Instant::now();
    for _ in 0..CLIENTS {
        let ids = ids.clone();
        let is_over = is_over.clone();
        let count = count.clone();
        tasks.spawn(async move {
            while !is_over.load(Relaxed) {
                // Counted in steps of 100; otherwise the cost of the shared counter would be measured.
                for _ in 0..100 {
                    ids.next().await?;
                }
                count.fetch_add(100, Relaxed);
                // A task that never waits for Redis must let the others run.
                tokio::task::yield_now().await;
            }
            anyhow::Ok(())
        });
    }
    tokio::time::sleep(ROUND_DURATION).await;
    let rate = count.load(Relaxed) as f64 / begin.elapsed().as_secs_f64();
    is_over.store(true, Relaxed);
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(rate)
}

async fn increments_per_second(server: &RedisServer) -> anyhow::Result<f64> {
    let mut benchmark = Command::new("redis-benchmark");
    benchmark.args([
        "-p",
        &server.port().to_string(),
        "-c",
        &CLIENTS.to_string(),
        "--csv",
    ]);
    benchmark.args(["-n", "150000", "INCR", "icr:bench:raw"]);
    let output = tokio::task::spawn_blocking(move || benchmark.output()).await?;
    let text = String::from_utf8(output.context("redis-benchmark")?.stdout)?;
    // A header, then a line of quoted figures: the command, its rate, latencies.
    let rate = text
        .lines()
        .last()
        .and_then(|line| line.split("\",\"").nth(1));
    let rate = rate.and_then(|rate| rate.parse().ok());
    rate.with_context(|| format!("redis-benchmark printed: {text}"))
}
