//! The test bed of the scenarios: two client processes of each language, and a connection to their
//! private Redis to inspect keys and channels.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use tokio::process::Command;

use crate::client_process::{Actor, ClientProcess};
use crate::rust_client::Fault;

/// The language of a client process, and thereby its lock library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// Redisson.
    Java,
    /// The lock package of this repository.
    Rust,
}

impl Language {
    /// The other language.
    pub fn other(self) -> Self {
        match self {
            Self::Java => Self::Rust,
            Self::Rust => Self::Java,
        }
    }
}

/// The settings with which client processes are started.
#[derive(Debug, Clone)]
pub struct Launcher {
    /// Redisson's version.
    pub redisson: String,
    /// Its classes and jars, as `java -cp` wants them.
    pub classpath: String,
    /// A second version and its class path, for scenarios in which two meet.
    pub second: (String, String),
    /// What the Java client puts in front of every name, if anything.
    pub prefix: Option<String>,
    /// The fault of the Rust client, if any.
    pub fault: Option<Fault>,
    /// The lease that both watchdogs renew.
    pub watchdog: Duration,
    /// The private Redis.
    pub url: String,
    /// The folder of the client processes' logs.
    pub logs: PathBuf,
}

impl Launcher {
    /// Starts a client process.
    pub async fn start(&self, language: Language) -> anyhow::Result<ClientProcess> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let watchdog = self.watchdog.as_millis().to_string();
        let mut command = match language {
            Language::Java => {
                let mut command = Command::new("java");
                // Small and quick to start: it runs one script at a time.
                command.args(["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]);
                command.args([
                    "-cp",
                    &self.classpath,
                    "interop.RedissonClientProcess",
                    &self.url,
                    &watchdog,
                ]);
                command.args(&self.prefix);
                command
            }
            Language::Rust => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["client", &self.url, &watchdog]);
                if let Some(fault) = self.fault {
                    command.args(["--fault", &fault.to_string()]);
                }
                command
            }
        };
        command.env("RUST_LOG", "info");
        let log =
            self.logs.join(format!("{number}-{language:?}-{}.log", self.redisson).to_lowercase());
        let log = std::fs::File::create(&log).with_context(|| log.display().to_string())?;
        ClientProcess::start(command, log).await
    }
}

/// Two client processes of each language, and a connection to their Redis.
pub struct TestBed {
    /// Starts further processes, which a scenario may kill.
    pub launcher: Launcher,
    /// A connection to look at keys.
    pub redis: MultiplexedConnection,
    java: [ClientProcess; 2],
    rust: [ClientProcess; 2],
}

impl TestBed {
    /// Starts all four processes.
    pub async fn start(launcher: Launcher) -> anyhow::Result<Self> {
        let redis = redis::Client::open(&*launcher.url)?.get_multiplexed_async_connection().await?;
        let start = |language| launcher.start(language);
        let java = [start(Language::Java).await?, start(Language::Java).await?];
        let rust = [start(Language::Rust).await?, start(Language::Rust).await?];
        Ok(Self { launcher, redis, java, rust })
    }

    /// A new actor in the first (0) or second (1) process of a language.
    pub fn actor(&self, language: Language, process: usize) -> Actor {
        let peers = match language {
            Language::Java => &self.java,
            Language::Rust => &self.rust,
        };
        peers[process % 2].actor()
    }

    /// Whether both languages have this kind of lock; if not, the one that does not.
    pub async fn supports(&self, kind: &str) -> anyhow::Result<Result<(), Language>> {
        for language in [Language::Java, Language::Rust] {
            let reply = self.actor(language, 0).ask(&format!("supports {kind} any")).await?;
            if reply.answer == "unsupported" {
                return Ok(Err(language));
            }
            reply.ok()?;
        }
        Ok(Ok(()))
    }

    /// A new lock name.
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

    /// Expects that no key with the lock's name is left but a token counter and the latch of a newer
    /// Redisson's release, which expires.
    pub async fn gone(&self, name: &str) -> anyhow::Result<()> {
        let mut left: Vec<String> = self.redis.clone().keys(format!("*{name}*")).await?;
        let kept = ["redisson_lock_token:", "redisson_unlock_latch:"];
        left.retain(|key| !kept.iter().any(|kept| key.starts_with(kept)));
        left.retain(|key| !key.ends_with(":counter"));
        ensure!(left.is_empty(), "still there: {}", left.join(", "));
        Ok(())
    }

    /// Waits until channels that contain `name` have so many subscribers.
    pub async fn subscribed(&self, name: &str, subscribers: usize) -> anyhow::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut redis = self.redis.clone();
        loop {
            let pattern = format!("*{name}*");
            let channels: Vec<String> =
                redis::cmd("PUBSUB").arg("CHANNELS").arg(pattern).query_async(&mut redis).await?;
            let counts: HashMap<String, usize> =
                redis::cmd("PUBSUB").arg("NUMSUB").arg(channels).query_async(&mut redis).await?;
            let found: usize = counts.values().sum();
            if found >= subscribers {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{found} of {subscribers} subscribed to {name}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
