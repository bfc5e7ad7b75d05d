//! Ratios that need no HTTP: the lock and the ids, called as the service calls them, beside the same scripts
//! and commands sent by redis-benchmark.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use lock::{LockConfig, Locks};
use redis::AsyncCommands;
use seckill::id::IdGenerator;
use tokio::task::JoinSet;
use workload::Access;

/// Tasks, and clients of redis-benchmark.
pub const CLIENTS: usize = 64;

/// Calls `work` from [`CLIENTS`] tasks for `lasting`; calls a second.
async fn closed_loop<F>(
    lasting: Duration,
    work: impl Fn(usize) -> F + Clone + Send + 'static,
) -> anyhow::Result<f64>
where
    F: Future<Output = anyhow::Result<u64>> + Send,
{
    let (over, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    let begin = Instant::now();
    for task in 0..CLIENTS {
        let (over, count, work) = (over.clone(), count.clone(), work.clone());
        tasks.spawn(async move {
            while !over.load(Relaxed) {
                count.fetch_add(work(task).await?, Relaxed);
            }
            anyhow::Ok(())
        });
    }
    tokio::time::sleep(lasting).await;
    let rate = count.load(Relaxed) as f64 / begin.elapsed().as_secs_f64();
    over.store(true, Relaxed);
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(rate)
}

/// Lock and unlock, each task a lock of its own, as each buyer has; pairs a second.
pub async fn lock_pairs(access: &Access, lasting: Duration) -> anyhow::Result<f64> {
    let client = seckill::connection::redis::client(&access.redis_url.clone().into())?;
    let locks = Arc::new(Locks::connect(client, LockConfig::default()).await?);
    let one = locks.clone();
    let rate = closed_loop(lasting, move |task| {
        let locks = one.clone();
        async move {
            let owner = locks.owner();
            let lock = locks.reentrant(&format!("bench:lock:{task}"))?;
            let guard = lock.try_acquire(&owner).await?.context("nobody else wants this lock")?;
            guard.release().await?;
            Ok(1)
        }
    })
    .await;
    locks.shutdown().await;
    rate
}

/// The scripts of acquire and release, each sent by redis-benchmark alone; pairs a second, as if one
/// followed the other. Most releases find the lock held, some do not, which flatters this side.
pub async fn raw_lock_pairs(access: &Access, lasting: Duration) -> anyhow::Result<f64> {
    let acquire = load(access, include_str!("../../lock/lua/acquire.lua")).await?;
    let text = concat!(
        include_str!("../../lock/lua/notify.lua"),
        include_str!("../../lock/lua/release.lua")
    );
    let release = load(access, text).await?;
    let owner = "00000000-0000-4000-8000-000000000000:1";
    let key = "bench:raw:__rand_int__";
    let mut redis = connection(access).await?;
    let first = requests(lasting, 60_000.0);
    let keys = (first / 10).max(1);
    let taken = ["EVALSHA", &acquire, "1", key, "30000", owner, "1"];
    let acquires = redis_benchmark(access, first, keys, &taken).await?;
    let held: bool = redis.exists("bench:raw:000000000000").await?;
    ensure!(held, "redis-benchmark's keys are not what was expected");
    let channel = "redisson_lock__channel:{bench}";
    let freed = ["EVALSHA", &release, "1", key, "PUBLISH", "0", channel, "30000", owner, "0"];
    let releases = redis_benchmark(access, keys, keys, &freed).await?;
    Ok(1.0 / (1.0 / acquires + 1.0 / releases))
}

/// IdGenerator from leased blocks of `block`; ids a second, by [`CLIENTS`] tasks.
pub async fn leased_ids(access: &Access, block: u32, lasting: Duration) -> anyhow::Result<f64> {
    let client = seckill::connection::redis::client(&access.redis_url.clone().into())?;
    let redis = seckill::connection::redis::connect(&client, Duration::from_secs(1)).await?;
    let zone = seckill::clock::Zone(access.time_zone);
    let ids = Arc::new(IdGenerator::new(redis, Arc::new(move || zone.now()), "bench", block));
    closed_loop(lasting, move |_| {
        let ids = ids.clone();
        async move {
            // Counted by the hundred, or the shared counter would be what is measured.
            for _ in 0..100 {
                ids.next().await?;
            }
            // A task that never waits for Redis must let the others run.
            tokio::task::yield_now().await;
            Ok(100)
        }
    })
    .await
}

/// One INCR an id, by as many clients of redis-benchmark; a second.
pub async fn raw_ids(access: &Access, lasting: Duration) -> anyhow::Result<f64> {
    redis_benchmark(access, requests(lasting, 60_000.0), 1, &["INCR", "icr:bench:raw"]).await
}

/// No sale's id.
const BENCH_SALE: &str = "999999999999";

/// The script of the `stream` rung, as the service runs it for each new buyer; admissions a second.
/// `None` where this checkout has no such script.
pub async fn raw_admissions(access: &Access, lasting: Duration) -> anyhow::Result<Option<f64>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../lua/stream_admit.lua");
    let Ok(text) = std::fs::read_to_string(path) else { return Ok(None) };
    let script = load(access, &text).await?;
    let mut redis = connection(access).await?;
    let (stock, claims) =
        (format!("seckill:stock:{BENCH_SALE}"), format!("seckill:order:{BENCH_SALE}"));
    let _: () = redis::pipe()
        .set(&stock, 2_000_000_000)
        .set("bench:epoch", "bench")
        .del(&["bench:stream", &claims])
        .query_async(&mut redis)
        .await?;
    let call = [
        "EVALSHA",
        &script,
        "2",
        "bench:stream",
        "bench:epoch",
        "1000000000",
        "60",
        "0",
        "__rand_int__",
        BENCH_SALE,
        "__rand_int__",
        "bench",
    ];
    let wanted = requests(lasting, 40_000.0);
    let rate = redis_benchmark(access, wanted, 1_000_000_000, &call).await?;
    let admitted: u64 = redis::cmd("XLEN").arg("bench:stream").query_async(&mut redis).await?;
    ensure!(admitted * 100 > wanted * 99, "only {admitted} of {wanted} were admitted");
    let _: () = redis.del(&["bench:stream", "bench:epoch", &claims, &stock]).await?;
    Ok(Some(rate))
}

fn requests(lasting: Duration, per_s: f64) -> u64 {
    (lasting.as_secs_f64() * per_s) as u64
}

async fn connection(access: &Access) -> anyhow::Result<redis::aio::MultiplexedConnection> {
    let client = redis::Client::open(access.redis_url.as_str())?;
    Ok(client.get_multiplexed_async_connection().await?)
}

async fn load(access: &Access, script: &str) -> anyhow::Result<String> {
    let mut redis = connection(access).await?;
    Ok(redis::cmd("SCRIPT").arg("LOAD").arg(script).query_async(&mut redis).await?)
}

/// Runs redis-benchmark without pipelining; requests a second. `__rand_int__` becomes one of `keys`.
async fn redis_benchmark(
    access: &Access,
    requests: u64,
    keys: u64,
    call: &[&str],
) -> anyhow::Result<f64> {
    let client = redis::Client::open(access.redis_url.as_str())?;
    let info = client.get_connection_info();
    let redis::ConnectionAddr::Tcp(host, port) = info.addr() else {
        anyhow::bail!("redis-benchmark needs a plain TCP address");
    };
    let mut command = Command::new("redis-benchmark");
    command
        .args(["-h", host, "-p", &port.to_string(), "--csv", "-c", &CLIENTS.to_string()])
        .args(["--dbnum", &info.redis_settings().db().to_string()])
        .args(["-n", &requests.to_string(), "-r", &keys.to_string()])
        .args(call);
    let output = crate::stack::output(command).await?;
    let said = String::from_utf8_lossy(&output.stdout);
    // "test","rps",… and a line of figures in quotes; a script's arguments come first and hold commas.
    let rate = said.lines().last().and_then(|line| {
        let mut fields = line.rsplit("\",\"");
        fields.nth(6)?.trim_matches('"').parse::<f64>().ok()
    });
    rate.with_context(|| {
        format!("redis-benchmark said: {said} {}", String::from_utf8_lossy(&output.stderr))
    })
}
