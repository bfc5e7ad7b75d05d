//! Soak test of the locks under faults: 200 tasks over 50 names of every kind, while Redis is
//! killed, paused and emptied of scripts and its connections are cut. At the end nothing may be left:
//! no task, no key, no subscription, no connection, no memory; and at no time may two tasks have
//! held what only one can.
//!
//! `cargo run --release -p seckill-loadtest --example lock_soak -- --minutes 10`; exits with 1 if a
//! law was broken. It starts a redis-server of its own. `--plant` breaks a law on purpose.

mod faults;
mod held_spans;
#[allow(dead_code)] // it can do more than is needed here
mod work;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Parser, ValueEnum};
use lock::{LockConfig, LockUsage, Locks};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use redis::aio::MultiplexedConnection;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use held_spans::HeldSpans;
use testkit::redis_server::RedisServer;
use work::Tally;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Short, so that faults outlast leases.
const LEASE: Duration = Duration::from_secs(1);

#[derive(Parser)]
struct Arguments {
    /// How long the faults go on
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Repeats the plan of another run (not its timing)
    #[arg(long)]
    seed: Option<u64>,
    /// How many tasks take locks
    #[arg(long, default_value_t = 200)]
    tasks: usize,
    /// Break a law, to see that it is noticed
    #[arg(long)]
    plant: Option<Plant>,
}

/// What can be broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Plant {
    /// One guard is forgotten, so that its key is renewed for ever.
    Guard,
    /// A task goes on as if it had the lock when it has not.
    Overlap,
    /// A task never ends.
    Task,
    /// Memory is kept with every acquire.
    Memory,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let seed = arguments.seed.unwrap_or_else(|| rand::rng().random_range(0..1_000_000));
    let time = Duration::from_secs_f64(arguments.minutes.max(0.05) * 60.0);
    println!("{} tasks, {:.0} s, --seed {seed}", arguments.tasks, time.as_secs_f64());

    let mut server = RedisServer::start_with(true).await;
    let alive = async || Ok(Handle::current().metrics().num_alive_tasks());
    let mut broken = Vec::new();
    expect("tasks of the runtime before all", 0, alive, &mut broken).await?;
    let config = LockConfig::default()
        .with_lease(LEASE)
        .with_command_timeout(Duration::from_millis(400))
        .with_connect_timeout(Duration::from_millis(400));
    let locks = Locks::connect(server.client(), config).await?;
    let (held_spans, tally, stop) = (
        Arc::new(HeldSpans::default()),
        Arc::new(Tally::default()),
        Arc::new(AtomicBool::new(false)),
    );
    let mut tasks = JoinSet::new();
    for number in 0..arguments.tasks as u64 {
        let random = StdRng::seed_from_u64(seed.wrapping_mul(1_000_003).wrapping_add(number));
        let (locks, held_spans, tally) = (locks.clone(), held_spans.clone(), tally.clone());
        let planted = arguments.plant.filter(|_| number == 0);
        tasks.spawn(work::work(locks, held_spans, tally, stop.clone(), random, planted));
    }

    let begun = Instant::now();
    let mut random = StdRng::seed_from_u64(seed);
    let mut samples: Vec<u64> = Vec::new();
    let mut acquired = 0;
    while begun.elapsed() < time {
        faults::one(&mut server, &mut random, &tally).await?;
        let minute = begun.elapsed().as_secs() / 60;
        if minute > samples.len() as u64 {
            samples.push(resident()?);
            let now = tally.acquired.load(Ordering::Relaxed);
            if now - acquired < 1000 {
                broken.push(format!("only {} acquires in minute {minute}", now - acquired));
            }
            acquired = now;
            println!("{minute:3} min  {} KiB  {}", samples[samples.len() - 1], tally.line());
        }
    }
    stop.store(true, Ordering::Relaxed);

    let ended = tokio::time::timeout(Duration::from_secs(60), async {
        while let Some(end) = tasks.join_next().await {
            end.context("a task panicked")?;
        }
        anyhow::Ok(())
    });
    match ended.await {
        Ok(end) => end?,
        Err(_) => broken.push(format!("{} tasks did not end", tasks.len())),
    }
    samples.push(resident()?);
    println!("at the end {} KiB  {}", samples[samples.len() - 1], tally.line());

    // What was left to the background needs a moment, and what was left to leases needs one lease.
    wait_until_idle(&locks, &server, &mut broken).await?;
    let held = locks.clone();
    locks.shutdown().await;
    drop((locks, held, tasks));
    let redis = server.conn().await;
    // The driver of the connection that looks.
    expect("tasks of the runtime", 1, alive, &mut broken).await?;
    let clients = async || {
        let list: String = redis::cmd("CLIENT").arg("LIST").query_async(&mut redis.clone()).await?;
        Ok(list.lines().count())
    };
    expect("connections", 1, clients, &mut broken).await?;
    broken.extend(held_spans.violations());
    broken.extend(tally.unexpected());
    flat(&samples, &mut broken);

    if broken.is_empty() {
        println!("all laws held: nothing left, nothing shared, memory flat");
        return Ok(());
    }
    for law in &broken {
        println!("BROKEN: {law}");
    }
    std::process::exit(1)
}

/// Nothing is held, watched or listened to; no key is left but the counters of fenced locks.
async fn wait_until_idle(
    locks: &Locks,
    server: &RedisServer,
    broken: &mut Vec<String>,
) -> anyhow::Result<()> {
    let redis = server.conn().await;
    let usage = async || Ok(locks.usage());
    expect("entries, watched, channels", LockUsage::default(), usage, broken).await?;
    sweep(locks, &redis, broken).await?;
    let keys = async || {
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut redis.clone()).await?;
        Ok(keys.into_iter().filter(|key| !key.starts_with("redisson_lock_token:")).collect())
    };
    expect("keys", Vec::<String>::new(), keys, broken).await?;
    let channels = async || channels(&mut redis.clone()).await;
    expect("subscriptions", 0, channels, broken).await
}

/// A waiter that cannot be taken out of a fair lock's queue within a lease, because Redis was away, is
/// left to the next user of the lock. This is that use, and it counts how often it was needed.
async fn sweep(
    locks: &Locks,
    redis: &MultiplexedConnection,
    broken: &mut Vec<String>,
) -> anyhow::Result<()> {
    const QUEUE: &str = "redisson_lock_queue:";
    tokio::time::sleep(LEASE).await;
    let queues: Vec<String> =
        redis::cmd("KEYS").arg(format!("{QUEUE}*")).query_async(&mut redis.clone()).await?;
    for queue in &queues {
        let name = queue.trim_start_matches(QUEUE).trim_matches(['{', '}']);
        match locks.fair(name)?.acquire_within(&locks.owner(), LEASE * 3).await? {
            Some(guard) => guard.release().await?,
            None => broken.push(format!("{name}: dead waiters keep others out")),
        }
    }
    println!("{} fair queues were left to the next user", queues.len());
    Ok(())
}

async fn channels(redis: &mut MultiplexedConnection) -> anyhow::Result<usize> {
    let names: Vec<String> = redis::cmd("PUBSUB").arg("CHANNELS").query_async(redis).await?;
    Ok(names.len())
}

/// Wait until it is so; after some leases, say what it is instead.
async fn expect<T: PartialEq + std::fmt::Debug>(
    what: &str,
    wanted: T,
    look: impl AsyncFn() -> anyhow::Result<T>,
    broken: &mut Vec<String>,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + LEASE * 10;
    loop {
        let found = look().await?;
        if found == wanted {
            return Ok(());
        }
        if Instant::now() >= deadline {
            broken.push(format!("{what}: {found:?} instead of {wanted:?}"));
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Memory at the end against memory after the first minute, when all has been used once.
fn flat(samples: &[u64], broken: &mut Vec<String>) {
    if let [first, .., last] = samples {
        println!("memory {first} KiB after a minute, {last} KiB at the end");
        if *last > first + first / 10 + 4096 {
            broken.push(format!("memory grew from {first} to {last} KiB"));
        }
    }
}

/// What this process keeps in memory, in KiB.
fn resident() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse()?)
}
