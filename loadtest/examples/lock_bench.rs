//! Benchmark of the cost of a lock, counted and timed from outside, for these locks and the `rslock` crate. Prints `name value` lines; `loadtest/locks.sh` runs it in turns with redis-benchmark and
//! draws the table.

use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, ensure};
use clap::{Parser, ValueEnum};
use hdrhistogram::Histogram;
use lock::{Guard, LockConfig, Locks};
use rand::Rng;
use redis::aio::MultiplexedConnection;
use rslock::LockManager;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;
use tokio::task::JoinSet;

/// Long enough that no lease ends in any of the measurements.
const LEASE: Duration = Duration::from_secs(30);

#[derive(Parser)]
struct Arguments {
    /// The Redis to use; nothing else may use it meanwhile
    url: String,
    library: Library,
    measurement: Measurement,
    /// Tasks (pairs), hand-overs (handover), waiters (contention) or pairs (commands)
    number: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
enum Library {
    Ours,
    Rslock,
}

#[derive(Clone, Copy, ValueEnum)]
enum Measurement {
    /// Lock and unlock without contention, for two seconds: pairs a second
    Pairs,
    /// From the release in one process to the end of the acquire in another
    Handover,
    /// Commands for each hand-over among many waiters of one process
    Contention,
    /// Commands for each pair without contention
    Commands,
    /// The other process of a hand-over (started by it)
    Waiter,
}

/// One library, connected.
#[derive(Clone)]
enum Client {
    Ours(Locks),
    Rslock(LockManager),
}

enum Held {
    Ours(Guard),
    Rslock(rslock::Lock),
}

impl Client {
    async fn connect(library: Library, url: &str) -> anyhow::Result<Self> {
        Ok(match library {
            Library::Ours => {
                let config = LockConfig::default().with_lease(LEASE);
                Self::Ours(Locks::connect(redis::Client::open(url)?, config).await?)
            }
            Library::Rslock => Self::Rslock(LockManager::new(vec![url.to_owned()])),
        })
    }

    /// Acquires the lock for a new owner, waiting as the library waits.
    async fn acquire(&self, name: &str) -> anyhow::Result<Held> {
        Ok(match self {
            Self::Ours(locks) => Held::Ours(locks.lock(name).acquire().await?),
            Self::Rslock(manager) => Held::Rslock(manager.acquire_no_guard(name, LEASE).await?),
        })
    }

    async fn release(&self, held: Held) -> anyhow::Result<()> {
        match (self, held) {
            (_, Held::Ours(guard)) => guard.release().await?,
            (Self::Rslock(manager), Held::Rslock(lock)) => manager.unlock(&lock).await,
            (Self::Ours(_), Held::Rslock(_)) => unreachable!("a lock of the other library"),
        }
        Ok(())
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let Arguments { url, library, measurement, number } = Arguments::parse();
    let client = Client::connect(library, &url).await?;
    let raw = redis::Client::open(&*url)?.get_multiplexed_async_connection().await?;
    match measurement {
        Measurement::Pairs => pairs(client, number).await,
        Measurement::Handover => handover(client, raw, library, &url, number).await,
        Measurement::Contention => contention(client, raw, number).await,
        Measurement::Commands => commands(client, raw, number).await,
        Measurement::Waiter => waiter(client).await,
    }
}

async fn pairs(client: Client, tasks: u32) -> anyhow::Result<()> {
    const WARM_UP: Duration = Duration::from_millis(300);
    const TIME: Duration = Duration::from_secs(2);
    let begun = Instant::now();
    let (from, until) = (begun + WARM_UP, begun + WARM_UP + TIME);
    let mut running = JoinSet::new();
    for task in 0..tasks {
        let client = client.clone();
        running.spawn(async move {
            let name = format!("lock:order:{task}");
            let mut done = 0u64;
            loop {
                let held = client.acquire(&name).await?;
                client.release(held).await?;
                let now = Instant::now();
                if now >= until {
                    return anyhow::Ok(done);
                }
                done += u64::from(now >= from);
            }
        });
    }
    let mut done = 0;
    while let Some(end) = running.join_next().await {
        done += end??;
    }
    println!("pairs {:.0}", done as f64 / TIME.as_secs_f64());
    Ok(())
}

/// The lock that goes from process to process.
const BATON: &str = "lock:baton";

/// This process holds; the other waits; this one releases; the other says when it has acquired.
async fn handover(
    client: Client,
    mut raw: MultiplexedConnection,
    library: Library,
    url: &str,
    rounds: u32,
) -> anyhow::Result<()> {
    let name = library.to_possible_value().context("a library")?;
    let mut child = Command::new(std::env::current_exe()?)
        .args([url, name.get_name(), "waiter", "0"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut stdin = child.stdin.take().context("no standard input")?;
    let mut lines = BufReader::new(child.stdout.take().context("no standard output")?).lines();
    let (mut took, mut pings) = (Histogram::<u64>::new(3)?, Histogram::<u64>::new(3)?);
    let warm_up = 20;
    for round in 0..rounds + warm_up {
        let held = client.acquire(BATON).await?;
        stdin.write_all(b"wait\n").await?;
        stdin.flush().await?;
        ensure!(lines.next_line().await?.as_deref() == Some("waiting"), "the waiter ended");
        if library == Library::Ours {
            subscribed(&mut raw).await?;
        }
        // It tries once more after subscribing, and then sleeps. The pause differs from round to
        // round, because a library that polls must not be met in step.
        let pause = rand::rng().random_range(5_000..25_000);
        tokio::time::sleep(Duration::from_micros(pause)).await;
        let pinged = Instant::now();
        redis::cmd("PING").query_async::<String>(&mut raw).await?;
        let ping = pinged.elapsed();
        tokio::time::sleep(Duration::from_micros(pause / 5)).await;
        let begun = micros();
        client.release(held).await?;
        let line = lines.next_line().await?.context("the waiter ended")?;
        if round >= warm_up {
            took.record(line.parse::<u64>()?.saturating_sub(begun))?;
            pings.record(u64::try_from(ping.as_micros())?)?;
        }
        ensure!(lines.next_line().await?.as_deref() == Some("released"), "the waiter ended");
    }
    drop(stdin);
    child.wait().await?;
    for (name, values) in [("handover", &took), ("ping", &pings)] {
        println!("{name}_p50_us {}", values.value_at_quantile(0.5));
        println!("{name}_p99_us {}", values.value_at_quantile(0.99));
    }
    Ok(())
}

async fn waiter(client: Client) -> anyhow::Result<()> {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while lines.next_line().await?.is_some() {
        say("waiting")?;
        let held = client.acquire(BATON).await?;
        say(&micros().to_string())?;
        client.release(held).await?;
        say("released")?;
    }
    Ok(())
}

/// Many wait behind one; each holds for a millisecond.
async fn contention(
    client: Client,
    mut raw: MultiplexedConnection,
    waiters: u32,
) -> anyhow::Result<()> {
    let held = client.acquire(BATON).await?;
    let mut running = JoinSet::new();
    for _ in 0..waiters {
        let client = client.clone();
        running.spawn(async move {
            let held = client.acquire(BATON).await?;
            tokio::time::sleep(Duration::from_millis(1)).await;
            client.release(held).await
        });
    }
    // All have tried, and those that sleep until a message do.
    tokio::time::sleep(Duration::from_millis(700)).await;
    let before = sent(&mut raw).await?;
    let begun = Instant::now();
    client.release(held).await?;
    while let Some(end) = running.join_next().await {
        end??;
    }
    let took = begun.elapsed();
    let all = sent(&mut raw).await? - before;
    // One of them gives the lock back in each hand-over; the rest are tries to take it.
    let tries = all as f64 / f64::from(waiters) - 1.0;
    println!("tries_per_handover {tries:.2}");
    println!("contention_ms {}", took.as_millis());
    Ok(())
}

async fn commands(client: Client, mut raw: MultiplexedConnection, n: u32) -> anyhow::Result<()> {
    // Connections are opened and scripts loaded once.
    let held = client.acquire("lock:order:1").await?;
    client.release(held).await?;
    let before = sent(&mut raw).await?;
    for _ in 0..n {
        let held = client.acquire("lock:order:1").await?;
        client.release(held).await?;
    }
    println!("commands_per_pair {:.2}", (sent(&mut raw).await? - before) as f64 / f64::from(n));
    Ok(())
}

/// How many commands clients have sent that acquire, release or await locks. What scripts call is
/// counted by Redis too, and left out here: none of the scripts calls any of these.
async fn sent(raw: &mut MultiplexedConnection) -> anyhow::Result<u64> {
    let direct = ["eval", "evalsha", "script|load", "subscribe", "unsubscribe", "set"];
    let stats: String = redis::cmd("INFO").arg("commandstats").query_async(raw).await?;
    let mut sum = 0;
    for line in stats.lines() {
        let Some((name, values)) =
            line.strip_prefix("cmdstat_").and_then(|line| line.split_once(":calls="))
        else {
            continue;
        };
        if direct.contains(&name) {
            sum += values.split(',').next().unwrap_or_default().parse::<u64>()?;
        }
    }
    Ok(sum)
}

/// Waits until a waiter has subscribed to the baton's channel.
async fn subscribed(raw: &mut MultiplexedConnection) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(5);
    let channel = format!("redisson_lock__channel:{{{BATON}}}");
    loop {
        let (_, count): (String, u32) =
            redis::cmd("PUBSUB").arg("NUMSUB").arg(&channel).query_async(raw).await?;
        if count > 0 {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "the waiter has not subscribed");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn say(line: &str) -> anyhow::Result<()> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{line}")?;
    Ok(output.flush()?)
}

/// By the clock of the machine, which both processes share.
fn micros() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}
