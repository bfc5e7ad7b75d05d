//! What a scenario plays on: a private Redis and two processes of each language. Also the words of
//! the wire (docs: the contract in src/lock) that scenarios look at from outside.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use tokio::process::Command;

use crate::peer::{Actor, Peer};
use crate::side::Fault;

/// The language of a side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Redisson.
    Java,
    /// This crate.
    Rust,
}

impl Side {
    /// The other language.
    pub fn other(self) -> Self {
        match self {
            Self::Java => Self::Rust,
            Self::Rust => Self::Java,
        }
    }
}

/// How to start the sides.
#[derive(Debug, Clone)]
pub struct Cast {
    /// Redisson's version.
    pub redisson: String,
    /// Its classes and jars, as `java -cp` wants them.
    pub classpath: String,
    /// What is wrong with the Rust side, if anything.
    pub fault: Option<Fault>,
    /// The lease that both watchdogs keep alive.
    pub watchdog: Duration,
    /// The private Redis.
    pub url: String,
    /// Where the sides' logs go.
    pub logs: PathBuf,
}

impl Cast {
    /// Start one side.
    pub async fn start(&self, side: Side) -> anyhow::Result<Peer> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let watchdog = self.watchdog.as_millis().to_string();
        let mut command = match side {
            Side::Java => {
                let mut command = Command::new("java");
                // Small and quick to start: it runs one script at a time.
                command.args(["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]);
                command.args(["-cp", &self.classpath, "interop.Side", &self.url, &watchdog]);
                command
            }
            Side::Rust => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["side", &self.url, &watchdog]);
                if let Some(fault) = self.fault {
                    command.args(["--fault", &format!("{fault:?}").to_lowercase()]);
                }
                command
            }
        };
        command.env("RUST_LOG", "info");
        let log = self.logs.join(format!("{number}-{side:?}-{}.log", self.redisson).to_lowercase());
        let log = std::fs::File::create(&log).with_context(|| log.display().to_string())?;
        Peer::start(command, log).await
    }
}

/// Two processes of each language, and a view of the Redis between them.
pub struct Stage {
    /// How they were started, for those that a scenario starts and kills.
    pub cast: Cast,
    /// A connection to look at keys.
    pub redis: MultiplexedConnection,
    java: [Peer; 2],
    rust: [Peer; 2],
}

impl Stage {
    /// Start all four processes.
    pub async fn set(cast: Cast) -> anyhow::Result<Self> {
        let redis = redis::Client::open(&*cast.url)?.get_multiplexed_async_connection().await?;
        let start = |side| cast.start(side);
        let java = [start(Side::Java).await?, start(Side::Java).await?];
        let rust = [start(Side::Rust).await?, start(Side::Rust).await?];
        Ok(Self { cast, redis, java, rust })
    }

    /// A new actor in the first (0) or second (1) process of a side.
    pub fn actor(&self, side: Side, process: usize) -> Actor {
        let peers = match side {
            Side::Java => &self.java,
            Side::Rust => &self.rust,
        };
        peers[process % 2].actor()
    }

    /// Whether both sides have this kind of lock.
    pub async fn supports(&self, kind: &str) -> anyhow::Result<Result<(), Side>> {
        for side in [Side::Java, Side::Rust] {
            let reply = self.actor(side, 0).ask(&format!("supports {kind} any")).await?;
            if reply.answer == "unsupported" {
                return Ok(Err(side));
            }
            reply.ok()?;
        }
        Ok(Ok(()))
    }

    /// A name that no lock has had yet.
    pub fn name(&self) -> String {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        format!("interop:lock:{}", NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The key's fields and their counts.
    pub async fn fields(&self, key: &str) -> anyhow::Result<HashMap<String, String>> {
        Ok(self.redis.clone().hgetall(key).await?)
    }

    /// The key's time to live in milliseconds; below zero: none, or no key.
    pub async fn ttl(&self, key: &str) -> anyhow::Result<i64> {
        Ok(self.redis.clone().pttl(key).await?)
    }

    /// Expect that the lock has left no key, nor any beside its own. A fenced lock keeps its counter,
    /// and a release by a newer Redisson a latch of its own, which expires.
    pub async fn gone(&self, name: &str) -> anyhow::Result<()> {
        let mut left: Vec<String> = self.redis.clone().keys(format!("*{name}*")).await?;
        let kept = ["redisson_lock_token:", "redisson_unlock_latch:"];
        left.retain(|key| !kept.iter().any(|kept| key.starts_with(kept)));
        left.retain(|key| !key.ends_with(":counter"));
        ensure!(left.is_empty(), "still there: {}", left.join(", "));
        Ok(())
    }

    /// Wait until so many listen to the channels that have `name` in theirs.
    pub async fn listened(&self, name: &str, listeners: usize) -> anyhow::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut redis = self.redis.clone();
        loop {
            let pattern = format!("*{name}*");
            let channels: Vec<String> =
                redis::cmd("PUBSUB").arg("CHANNELS").arg(pattern).query_async(&mut redis).await?;
            let mut found = 0;
            for channel in channels {
                let (_, count): (String, usize) =
                    redis::cmd("PUBSUB").arg("NUMSUB").arg(channel).query_async(&mut redis).await?;
                found += count;
            }
            if found >= listeners {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{found} of {listeners} listen for {name}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
