//! Faults that are injected while a comparison sells, from outside and with what an operator has: the address of Redis,
//! and a command that kills an instance.

use std::time::{Duration, Instant};

use redis::{AsyncCommands, Cmd, RedisError, ScanOptions, aio::MultiplexedConnection};
use tokio::time::sleep;

use super::{document::InjectedFault, run_state::RunState};
use crate::{Environment, Error, kill, redis_connection::masters, sessions};

/// How long Redis is paused, leases are cut, and a killed instance stays away at least.
const LASTS: Duration = Duration::from_secs(2);
/// From one cutting of all leases to the next.
const CUT_EVERY: Duration = Duration::from_millis(5);
/// The purchase locks.
const LOCKS: [&str; 3] = [
    "lock:order:*",
    "lock:setnx:order:*",
    "lock:setnx-unowned:order:*",
];
/// From one killing of an instance to the next: a supervisor may need longer to start it.
const KILL_EVERY: Duration = Duration::from_millis(200);

impl InjectedFault {
    /// Injects the fault, records it as an event of the run, and returns when it is over.
    pub async fn inject(self, environment: &Environment, run: &RunState) -> Result<(), Error> {
        let lasts = Some(LASTS.as_secs_f64());
        match self {
            Self::PauseRedis => {
                let ms = LASTS.as_millis() as u64;
                ask_masters(
                    environment,
                    redis::cmd("CLIENT").arg("PAUSE").arg(ms).arg("ALL"),
                )
                .await?;
                run.record_event(self, lasts, None);
            }
            Self::EmptyRedis => {
                ask_masters(environment, &redis::cmd("FLUSHALL")).await?;
                run.record_event(self, None, None);
                let buyers = run.buyers.get().map(Vec::as_slice).unwrap_or_default();
                sessions::open(&environment.access, buyers).await?;
            }
            Self::KillInstance => kill(environment, run).await?,
            Self::CutLease => {
                let mut masters = masters(&environment.access.redis_url).await?;
                let index = run.record_event(self, lasts, None);
                let until = Instant::now() + LASTS;
                let mut cut = 0;
                while Instant::now() < until {
                    for redis in &mut masters {
                        cut += cut_leases(redis).await.map_err(failed)?;
                    }
                    run.lock().events[index].cut = Some(cut);
                    sleep(CUT_EVERY).await;
                }
            }
        }
        Ok(())
    }
}

fn failed(source: RedisError) -> Error {
    Error::Redis {
        what: "while a fault was injected",
        source,
    }
}

async fn ask_masters(environment: &Environment, command: &Cmd) -> Result<(), Error> {
    for mut redis in masters(&environment.access.redis_url).await? {
        command
            .query_async::<()>(&mut redis)
            .await
            .map_err(failed)?;
    }
    Ok(())
}

/// Ends the lease of every purchase lock on one server; returns how many there were.
async fn cut_leases(redis: &mut MultiplexedConnection) -> Result<u64, RedisError> {
    let mut pipe = redis::pipe();
    for pattern in LOCKS {
        let options = ScanOptions::default()
            .with_pattern(pattern)
            .with_count(10_000);
        let mut found = redis.scan_options::<String>(options).await?;
        while let Some(key) = found.next_item().await {
            pipe.pexpire(key?, 1);
        }
    }
    if pipe.is_empty() {
        return Ok(0);
    }
    let ended: Vec<u64> = pipe.query_async(redis).await?;
    Ok(ended.into_iter().sum())
}

async fn kill(environment: &Environment, run: &RunState) -> Result<(), Error> {
    let node = kill::kill_last_node(environment).await?;
    let index = run.record_event(InjectedFault::KillInstance, None, Some(node.authority()));
    let begun = Instant::now();
    // A supervisor is quick: without this, nobody would see that the instance was away.
    while begun.elapsed() < LASTS {
        sleep(KILL_EVERY).await;
        // Fails while the instance is away.
        kill::run_command(environment).await.ok();
    }
    // After the run, it does not matter whether it comes back.
    if kill::wait_until_back(&node, || run.state().is_under_way()).await? {
        run.lock().events[index].seconds = Some(begun.elapsed().as_secs_f64());
    }
    Ok(())
}
