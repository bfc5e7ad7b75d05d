//! The test bed of the scenarios: two client processes of each language, and a connection to their
//! private Redis to inspect keys and channels.

use std::collections::HashMap;
use std::fmt::Debug;
use std::ops::RangeBounds;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use testkit::wait::poll;
use tokio::process::Command;

use crate::client_process::{Actor, ClientProcess, Language, WATCHDOG};
use crate::rust_client::Fault;

/// The folder of the client processes' logs.
pub const LOGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/redisson/target/log");

/// The settings with which client processes are started.
#[derive(Debug, Clone)]
pub struct Launcher {
    /// The Java client and its Redisson, as `java -cp` wants them.
    pub redisson: String,
    /// The same with another version of Redisson, for scenarios in which two versions meet.
    pub second: String,
    /// What the Java client puts in front of every name, if anything.
    pub prefix: Option<&'static str>,
    /// The fault of the Rust client, if any.
    pub fault: Option<Fault>,
    /// The private Redis.
    pub url: String,
}

impl Launcher {
    /// Starts a client process.
    pub async fn start(&self, language: Language) -> anyhow::Result<ClientProcess> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let mut command = match language {
            Language::Java => {
                let mut java = Command::new("java");
                // Small and quick to start: it runs one script at a time.
                java.args(["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]);
                java.args(["-cp", &self.redisson, "interop.RedissonClientProcess"]);
                java.args([&self.url, &WATCHDOG.as_millis().to_string()])
                    .args(self.prefix);
                java
            }
            Language::Rust => {
                let fault = self.fault.map(|fault| format!("--fault={fault:?}"));
                let mut rust = Command::new(std::env::current_exe()?);
                rust.args(["--client", &self.url]).args(fault);
                rust
            }
        };
        command.env("RUST_LOG", "info");
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let log = format!("{LOGS}/{number}-{language:?}.log");
        let log = std::fs::File::create(&log).context(log)?;
        ClientProcess::start(language, command, log).await
    }
}

/// Two client processes of each language, and a connection to their Redis.
pub struct TestBed {
    /// Starts further processes, which a scenario may kill.
    pub launcher: Launcher,
    redis: MultiplexedConnection,
    java: [ClientProcess; 2],
    rust: [ClientProcess; 2],
}

impl TestBed {
    /// Starts all four processes.
    pub async fn start(launcher: Launcher) -> anyhow::Result<Self> {
        let redis = redis::Client::open(&*launcher.url)?
            .get_multiplexed_async_connection()
            .await?;
        let start = |language| launcher.start(language);
        let java = [start(Language::Java).await?, start(Language::Java).await?];
        let rust = [start(Language::Rust).await?, start(Language::Rust).await?];
        Ok(Self {
            launcher,
            redis,
            java,
            rust,
        })
    }

    /// A scenario's surroundings, with a new name.
    pub fn scene<'a>(&'a self, kind: &'a str, holder: Language) -> Scene<'a> {
        let scene = Scene {
            bed: self,
            kind,
            holder,
            waiter: holder.counterpart(),
            name: String::new(),
        };
        scene.anew()
    }
}

/// What a scenario runs with: a kind of lock, a name of its own, and who holds first.
#[derive(Clone)]
pub struct Scene<'a> {
    pub bed: &'a TestBed,
    pub kind: &'a str,
    pub holder: Language,
    /// The other language, unless Java is tested alone.
    pub waiter: Language,
    pub name: String,
}

impl Scene<'_> {
    /// The same with another name.
    pub fn named(&self, name: String) -> Self {
        Self {
            name,
            ..self.clone()
        }
    }

    /// The same with a new name.
    pub fn anew(&self) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        self.named(format!(
            "interop:lock:{}",
            NEXT.fetch_add(1, Ordering::Relaxed)
        ))
    }

    /// A new owner in the first (even number) or second (odd number) process of a language.
    pub fn actor(&self, language: Language, process: usize) -> Actor {
        let processes = match language {
            Language::Java => &self.bed.java,
            Language::Rust => &self.bed.rust,
        };
        self.actor_in(&processes[process % 2])
    }

    /// A new owner in this process.
    pub fn actor_in(&self, process: &ClientProcess) -> Actor {
        process.actor(self.kind, &self.name)
    }

    /// The owner that holds first.
    pub fn holder(&self) -> Actor {
        self.actor(self.holder, 0)
    }

    /// An owner of the waiter's language.
    pub fn counterpart(&self) -> Actor {
        self.actor(self.waiter, 0)
    }

    /// An owner that a holder excludes. Readers share, so a reader's rival is a writer.
    pub fn rival(&self, language: Language) -> Actor {
        let mut rival = self.actor(language, 0);
        if self.kind == "read" {
            rival.use_kind("write");
        }
        rival
    }

    /// `count` owners, of each language in turn, in both processes.
    pub fn alternately(&self, first: Language, count: usize) -> Vec<Actor> {
        (0..count)
            .map(|number| {
                let language = if number % 2 == 0 {
                    first
                } else {
                    first.counterpart()
                };
                self.actor(language, number / 2)
            })
            .collect()
    }

    /// A connection to look at keys.
    pub fn redis(&self) -> MultiplexedConnection {
        self.bed.redis.clone()
    }

    /// The lock's fields and their counts.
    pub async fn fields(&self) -> anyhow::Result<HashMap<String, String>> {
        Ok(self.redis().hgetall(&self.name).await?)
    }

    /// The key's time to live in milliseconds; below zero: no expiry, or no key.
    pub async fn ttl(&self) -> anyhow::Result<i64> {
        Ok(self.redis().pttl(&self.name).await?)
    }

    /// Expects that the keys with the lock's name are gone. Two kinds may stay: counters, and the unlock
    /// latch, which newer versions of Redisson leave until it expires.
    pub async fn gone(&self) -> anyhow::Result<()> {
        let mut leftover_keys: Vec<String> = self.redis().keys(format!("*{}*", self.name)).await?;
        let kept_prefixes = ["redisson_lock_token:", "redisson_unlock_latch:"];
        leftover_keys.retain(|key| !kept_prefixes.iter().any(|prefix| key.starts_with(prefix)));
        leftover_keys.retain(|key| !key.ends_with(":counter"));
        ensure!(
            leftover_keys.is_empty(),
            "still there: {}",
            leftover_keys.join(", ")
        );
        Ok(())
    }

    /// Waits until channels that contain the name have at least so many subscribers.
    pub async fn subscribed(&self, subscribers: usize) -> anyhow::Result<()> {
        let mut redis = self.redis();
        let pattern = format!("*{}*", self.name);
        becomes("subscribers", subscribers.., async || {
            let channels: Vec<String> = redis::cmd("PUBSUB")
                .arg("CHANNELS")
                .arg(&pattern)
                .query_async(&mut redis)
                .await?;
            let counts: HashMap<String, usize> = redis::cmd("PUBSUB")
                .arg("NUMSUB")
                .arg(channels)
                .query_async(&mut redis)
                .await?;
            anyhow::Ok(counts.values().sum())
        })
        .await
    }

    /// Waits until a fair lock's queue has so many waiters.
    pub async fn queued(&self, waiters: usize) -> anyhow::Result<()> {
        let mut redis = self.redis();
        let queue = format!("redisson_lock_queue:{{{}}}", self.name);
        becomes("waiters in the queue", waiters..=waiters, async || {
            anyhow::Ok(redis.llen(&queue).await?)
        })
        .await
    }
}

/// Waits until `count` is in the range `wanted`.
async fn becomes(
    what: &str,
    wanted: impl RangeBounds<usize> + Debug,
    mut count: impl AsyncFnMut() -> anyhow::Result<usize>,
) -> anyhow::Result<()> {
    let mut last = 0;
    let reached = poll(
        Duration::from_secs(10),
        Duration::from_millis(5),
        async || {
            last = count().await?;
            anyhow::Ok(wanted.contains(&last).then_some(()))
        },
    );
    ensure!(reached.await?.is_some(), "{last} {what}, not {wanted:?}");
    Ok(())
}
