//! Measurements without HTTP: locks inside this process, called as the service calls them; the same scripts and commands
//! sent by redis-benchmark; and single commands and commits, to which other measurements are compared.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use futures_util::future::try_join_all;
use lock::{LockConfig, Locks};
use redis::AsyncCommands;
use redis_link::Server;
use sqlx::{Executor, MySqlPool};
use testkit::redis_server::RedisServer;
use workload::latency::Latency;
use workload::redis_connection;

use crate::bench::environment::Environment;
use crate::bench::ratios;
use crate::bench::run::Run;

/// How many tasks use locks at once, and how many clients redis-benchmark has.
pub const CLIENTS: usize = 64;

/// Measures the run `name`. A rate is measured for about `duration`; of commits a fixed number is timed.
pub async fn measure(
    name: &'static str,
    environment: &Environment,
    duration: Duration,
) -> anyhow::Result<Run> {
    let answers_per_s = match name {
        ratios::COMMIT => {
            let latency = commits(&environment.pool).await?;
            return Ok(Run {
                name,
                clients: 1,
                latency,
                ..Run::default()
            });
        }
        ratios::LOCK_PAIRS => lock_pairs(environment, duration).await?,
        ratios::RAW_LOCK_PAIRS => raw_lock_pairs(&environment.redis_server, duration).await?,
        ratios::RAW_GETS => {
            let wanted = requests(duration, 40_000.0);
            redis_benchmark(
                &environment.redis_server,
                wanted,
                1,
                &["GET", "cache:shop:1"],
            )
            .await?
        }
        ratios::RAW_ADMISSIONS => raw_admissions(&environment.redis_server, duration).await?,
        _ => bail!("{name} is not measured without HTTP"),
    };
    Ok(Run {
        name,
        clients: CLIENTS,
        answers_per_s,
        ..Run::default()
    })
}

/// Times of small transactions of one client, each with its commit.
pub async fn commits(pool: &MySqlPool) -> anyhow::Result<Latency> {
    let mut times = Vec::new();
    for _ in 0..100 {
        let begun = Instant::now();
        pool.execute("UPDATE tb_seckill_voucher SET stock = stock + 1 ORDER BY voucher_id LIMIT 1")
            .await?;
        times.push(begun.elapsed());
    }
    Ok(Latency::from_durations(times))
}

/// Acquires and releases locks from [`CLIENTS`] tasks, one lock per task, as each buyer has its own; pairs per second.
async fn lock_pairs(environment: &Environment, duration: Duration) -> anyhow::Result<f64> {
    let server = Server::from_url(&environment.access.redis_url)?;
    let locks = Arc::new(Locks::connect(server, LockConfig::default()).await?);
    let begin = Instant::now();
    let tasks = (0..CLIENTS).map(|number| {
        let locks = locks.clone();
        tokio::spawn(async move {
            let mut count = 0_u64;
            while begin.elapsed() < duration {
                let lock = locks.lock(&format!("bench:lock:{number}"));
                let guard = lock.try_acquire().await?;
                guard
                    .context("a lock of one task alone was held")?
                    .release()
                    .await?;
                count += 1;
            }
            anyhow::Ok(count)
        })
    });
    let mut pairs = 0_u64;
    for count in try_join_all(tasks).await? {
        pairs += count?;
    }
    let rate = pairs as f64 / begin.elapsed().as_secs_f64();
    locks.shutdown().await;
    Ok(rate)
}

/// The scripts of acquire and release, each sent by redis-benchmark in a run of its own; pairs per second, as if one
/// followed the other. Some releases find no lock, which takes less time: redis-benchmark looks a little faster than it is.
async fn raw_lock_pairs(server: &RedisServer, duration: Duration) -> anyhow::Result<f64> {
    let acquire_text = concat!(
        include_str!("../../../crates/lock/lua/generation.lua"),
        include_str!("../../../crates/lock/lua/acquire.lua")
    );
    let acquire = load(server, acquire_text).await?;
    let release_text = concat!(
        include_str!("../../../crates/lock/lua/generation.lua"),
        include_str!("../../../crates/lock/lua/notify.lua"),
        include_str!("../../../crates/lock/lua/release.lua")
    );
    let release = load(server, release_text).await?;
    let owner = "00000000-0000-4000-8000-000000000000:1";
    let key = "bench:raw:__rand_int__";
    let mut redis = redis_connection::connect(&server.url()).await?;
    let acquire_count = requests(duration, 60_000.0);
    let key_count = (acquire_count / 10).max(1);
    let generation_key = "bench:generation";
    let generation = "1";
    let acquire_call = [
        "EVALSHA",
        &acquire,
        "2",
        key,
        generation_key,
        "30000",
        owner,
        "1",
        generation,
    ];
    let acquires_per_s = redis_benchmark(server, acquire_count, key_count, &acquire_call).await?;
    // `__rand_int__` is written with twelve digits.
    let held: bool = redis.exists("bench:raw:000000000000").await?;
    ensure!(held, "redis-benchmark's keys are not what was expected");
    let channel = "redisson_lock__channel:{bench}";
    let release_call = [
        "EVALSHA",
        &release,
        "2",
        key,
        generation_key,
        "PUBLISH",
        "0",
        channel,
        "30000",
        owner,
        "0",
        generation,
    ];
    let releases_per_s = redis_benchmark(server, key_count, key_count, &release_call).await?;
    Ok(1.0 / (1.0 / acquires_per_s + 1.0 / releases_per_s))
}

/// The script with which the strategy `stream` admits new buyers, one buyer a call (the service admits several); admissions
/// per second.
async fn raw_admissions(server: &RedisServer, duration: Duration) -> anyhow::Result<f64> {
    // No sale has this id.
    const SALE: &str = "999999999999";
    let text = concat!(
        include_str!("../../../lua/stream_mark.lua"),
        include_str!("../../../lua/stream_admit.lua")
    );
    let script = load(server, text).await?;
    let mut redis = redis_connection::connect(&server.url()).await?;
    let stream = "bench:stream";
    let pending = "bench:pending";
    let [stock, claims, open] =
        ["stock", "order", "open"].map(|part| format!("seckill:{part}:{SALE}"));
    let keys = [stream, pending, &stock, &claims, &open];
    let pending_limit = "1000000000";
    let admitted_until = "9000000000000000";
    // The first call writes the mark of this server's data (stream_mark.lua). The sale is then opened under that mark.
    let mut marking_call = redis::cmd("EVALSHA");
    marking_call
        .arg(&script)
        .arg(keys.len())
        .arg(&keys)
        .arg(pending_limit)
        .arg(&["1", SALE, "1", "1", admitted_until]);
    marking_call.exec_async(&mut redis).await?;
    let mark: String = redis.hget(pending, "mark").await?;
    let _: () = redis::pipe()
        .set(&stock, 2_000_000_000)
        .set(&open, &mark)
        .sadd(&claims, &mark)
        .query_async(&mut redis)
        .await?;
    let buyer = ["1", SALE, "__rand_int__", "__rand_int__", admitted_until];
    let call = [
        &["EVALSHA", &script, "5"],
        &keys[..],
        &[pending_limit],
        &buyer,
    ]
    .concat();
    let wanted = requests(duration, 40_000.0);
    let rate = redis_benchmark(server, wanted, 1_000_000_000, &call).await?;
    let admitted: u64 = redis::cmd("XLEN")
        .arg(stream)
        .query_async(&mut redis)
        .await?;
    ensure!(
        admitted * 100 > wanted * 99,
        "only {admitted} of {wanted} were admitted"
    );
    let _: () = redis.del(&keys).await?;
    Ok(rate)
}

fn requests(duration: Duration, per_s: f64) -> u64 {
    (duration.as_secs_f64() * per_s) as u64
}

async fn load(server: &RedisServer, script: &str) -> anyhow::Result<String> {
    let mut redis = redis_connection::connect(&server.url()).await?;
    Ok(redis::cmd("SCRIPT")
        .arg("LOAD")
        .arg(script)
        .query_async(&mut redis)
        .await?)
}

/// Runs redis-benchmark without pipelining; requests per second. In each request `__rand_int__` becomes a random number below
/// `key_count`.
async fn redis_benchmark(
    server: &RedisServer,
    requests: u64,
    key_count: u64,
    call: &[&str],
) -> anyhow::Result<f64> {
    let port = server.port().to_string();
    let mut command = Command::new("redis-benchmark");
    command
        .args(["-p", &port, "--csv", "-c", &CLIENTS.to_string()])
        .args(["-n", &requests.to_string(), "-r", &key_count.to_string()])
        .args(call);
    let output =
        tokio::task::block_in_place(|| command.output()).context("running redis-benchmark")?;
    let text = String::from_utf8_lossy(&output.stdout);
    // A header, then a line of quoted figures. A script's arguments come first and contain commas, so count from the
    // end.
    let rate = text.lines().last().and_then(|line| {
        let mut fields = line.rsplit("\",\"");
        fields.nth(6)?.trim_matches('"').parse::<f64>().ok()
    });
    rate.with_context(|| {
        format!(
            "redis-benchmark printed: {text} {}",
            String::from_utf8_lossy(&output.stderr)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The scripts' arguments are written in this file a second time. Each measurement fails unless the scripts do with them
    /// what they do for the service.
    #[tokio::test(flavor = "multi_thread")]
    async fn redis_benchmark_calls_the_scripts_as_the_service_does() {
        let server = RedisServer::start().await;
        let duration = Duration::from_millis(50);

        let lock_pairs = raw_lock_pairs(&server, duration).await.expect("locks");
        let admissions = raw_admissions(&server, duration).await.expect("admissions");

        assert!(
            lock_pairs > 0.0 && admissions > 0.0,
            "{lock_pairs} {admissions}"
        );
    }
}
