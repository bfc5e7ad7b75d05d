//! The command line of the read scenarios.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use seckill_loadtest::{
    reads::Way,
    scenario::{
        avalanche::AvalancheOptions, penetration::PenetrationOptions, read::ReadOptions,
        stampede::StampedeOptions, updates::UpdatesOptions,
    },
};
use workload::{Access, Target, live::Progress};

use super::AccessArgs;

#[derive(Debug, Args)]
pub struct CommonArgs {
    /// Base URLs of the instances themselves, not of the proxy: their metrics are read, too
    #[arg(
        long,
        env = "NODES",
        value_delimiter = ',',
        value_name = "URL",
        default_value = "http://127.0.0.1:8081,http://127.0.0.1:8082"
    )]
    targets: Vec<Target>,
    /// Write the report as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    access: AccessArgs,
}

impl CommonArgs {
    fn parts(self) -> (Access, Vec<Target>, Option<PathBuf>) {
        (self.access.access(), self.targets, self.json)
    }
}

#[derive(Debug, Args)]
pub struct StampedeArgs {
    /// Readers per instance, each with a connection of its own
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=30_000))]
    waiters: u32,
    /// Expiries per policy
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// The policies, by turns in each round
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NAMES",
        default_value = "cache-aside,null-caching,mutex,logical-expiry,layered"
    )]
    policies: Vec<Way>,
    /// How long loads are made to last, in milliseconds, by locking the table of shops against
    /// readers; 0: as long as they take
    #[arg(long, default_value_t = 300, value_name = "MS",
          value_parser = clap::value_parser!(u64).range(0..=800))]
    slow_load: u64,
    /// How long an instance may serve a copy from its memory, in milliseconds
    #[arg(long, default_value_t = 1000, value_name = "MS")]
    local_ttl_ms: u64,
    /// The hot shop
    #[arg(long, default_value_t = 1, value_name = "ID")]
    shop_id: u64,
    #[command(flatten)]
    common: CommonArgs,
}

impl StampedeArgs {
    /// The stampede asked for, and where its JSON goes.
    pub fn options(self) -> (StampedeOptions, Option<PathBuf>) {
        let (access, targets, json) = self.common.parts();
        let options = StampedeOptions {
            waiters: self.waiters as usize,
            rounds: self.rounds,
            ways: self.policies,
            shop_id: self.shop_id,
            slow_load: Duration::from_millis(self.slow_load),
            local_ttl: Duration::from_millis(self.local_ttl_ms),
            progress: Progress::Stderr,
            ..StampedeOptions::new(access, targets)
        };
        (options, json)
    }
}

#[derive(Debug, Args)]
pub struct PenetrationArgs {
    /// Requests of each judged pass
    #[arg(long, default_value_t = 100_000,
          value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    requests: u32,
    /// Distinct ids of the passes without the filter, each asked requests ÷ distinct times
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    distinct: u32,
    /// Keep-alive connections per instance
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// The filter's stated rate of false positives, above 0 and below 1
    #[arg(long, default_value_t = 0.01, value_name = "RATE", value_parser = share)]
    false_positives: f64,
    /// How long a cached null is remembered, in seconds
    #[arg(long, default_value_t = 120, value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(1..))]
    null_ttl: u64,
    #[command(flatten)]
    common: CommonArgs,
}

impl PenetrationArgs {
    /// The crawl asked for, and where its JSON goes.
    pub fn options(self) -> (PenetrationOptions, Option<PathBuf>) {
        let (access, targets, json) = self.common.parts();
        let options = PenetrationOptions {
            requests: self.requests as usize,
            distinct: self.distinct as usize,
            connections: self.connections as usize,
            false_positives: self.false_positives,
            null_ttl: Duration::from_secs(self.null_ttl),
            progress: Progress::Stderr,
            ..PenetrationOptions::new(access, targets)
        };
        (options, json)
    }
}

#[derive(Debug, Args)]
pub struct AvalancheArgs {
    /// Temporary shops, each with a key of its own
    #[arg(long, default_value_t = 10_000,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    keys: u64,
    /// Keep-alive connections per instance
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// The time to live around which the service spreads, in seconds
    #[arg(long, default_value_t = 1800, value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    ttl: u64,
    /// The policy [default: the configured one]
    #[arg(long, value_name = "NAME")]
    policy: Option<Way>,
    #[command(flatten)]
    common: CommonArgs,
}

impl AvalancheArgs {
    /// The avalanche asked for, and where its JSON goes.
    pub fn options(self) -> (AvalancheOptions, Option<PathBuf>) {
        let (access, targets, json) = self.common.parts();
        let options = AvalancheOptions {
            keys: self.keys,
            connections: self.connections as usize,
            way: self.policy,
            ttl: Duration::from_secs(self.ttl),
            progress: Progress::Stderr,
            ..AvalancheOptions::new(access, targets)
        };
        (options, json)
    }
}

#[derive(Debug, Args)]
pub struct ReadArgs {
    /// How long to read
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Requests per second over all instances: an open loop [default: a closed loop]
    #[arg(long, value_name = "PER_SECOND", value_parser = positive)]
    rate: Option<f64>,
    /// Keep-alive connections per instance
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// Different shops; temporary ones are made where there are fewer
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    ids: u64,
    /// Skew of Zipf's law over them: 0 means all alike, 1 is the classic web
    #[arg(long, default_value_t = 1.0, value_name = "SKEW", value_parser = not_negative)]
    zipf: f64,
    /// Share of the requests that ask for shops which do not exist, in percent
    #[arg(long, default_value_t = 1.0, value_name = "PERCENT", value_parser = percent)]
    absent: f64,
    /// Keys removed from Redis per second, as if they had expired, so that there are loads
    #[arg(long, default_value_t = 20.0, value_name = "KEYS", value_parser = not_negative)]
    expire_per_second: f64,
    /// The policy [default: the configured one]
    #[arg(long, value_name = "NAME")]
    policy: Option<Way>,
    /// Seconds with a 5xx, or without an answer, that are no violation
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    tolerate_seconds: usize,
    /// Time limit of one read, in seconds
    #[arg(long, default_value_t = 10, value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(1..=600))]
    timeout: u64,
    #[command(flatten)]
    common: CommonArgs,
}

impl ReadArgs {
    /// The reads asked for, and where their JSON goes.
    pub fn options(self) -> (ReadOptions, Option<PathBuf>) {
        let (access, targets, json) = self.common.parts();
        let options = ReadOptions {
            duration: Duration::from_secs(self.seconds),
            rate: self.rate,
            connections: self.connections as usize,
            ids: self.ids,
            zipf: self.zipf,
            absent: self.absent / 100.0,
            expire_per_second: self.expire_per_second,
            way: self.policy,
            tolerate_seconds: self.tolerate_seconds,
            timeout: Duration::from_secs(self.timeout),
            progress: Progress::Stderr,
            ..ReadOptions::new(access, targets)
        };
        (options, json)
    }
}

#[derive(Debug, Args)]
pub struct UpdatesArgs {
    /// Changes of the shop's name, one after the other
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    updates: u64,
    /// Pause after each change, in milliseconds
    #[arg(long, default_value_t = 10, value_name = "MS")]
    pause_ms: u64,
    /// Readers per instance
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    readers: u32,
    /// How long an old value may still be served after its change was confirmed, in milliseconds
    #[arg(long, default_value_t = 1000, value_name = "MS")]
    bound_ms: u64,
    /// Cut the invalidation connections (CLIENT KILL TYPE pubsub) during each so-manieth change; 0:
    /// never
    #[arg(long, default_value_t = 100, value_name = "UPDATES")]
    cut_every: u64,
    /// The readers' policy [default: the configured one]
    #[arg(long, value_name = "NAME")]
    policy: Option<Way>,
    /// The shop; it gets its name back at the end
    #[arg(long, default_value_t = 1, value_name = "ID")]
    shop_id: u64,
    #[command(flatten)]
    common: CommonArgs,
}

impl UpdatesArgs {
    /// The changes asked for, and where their JSON goes.
    pub fn options(self) -> (UpdatesOptions, Option<PathBuf>) {
        let (access, targets, json) = self.common.parts();
        let options = UpdatesOptions {
            updates: self.updates,
            pause: Duration::from_millis(self.pause_ms),
            readers: self.readers as usize,
            shop_id: self.shop_id,
            way: self.policy,
            bound: Duration::from_millis(self.bound_ms),
            cut_every: self.cut_every,
            progress: Progress::Stderr,
            ..UpdatesOptions::new(access, targets)
        };
        (options, json)
    }
}

fn number(text: &str, holds: impl Fn(f64) -> bool, wanted: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("it must be a number {wanted}"))?;
    if number.is_finite() && holds(number) {
        Ok(number)
    } else {
        Err(format!("it must be a number {wanted}"))
    }
}

fn positive(text: &str) -> Result<f64, String> {
    number(text, |number| number > 0.0, "above 0")
}

fn not_negative(text: &str) -> Result<f64, String> {
    number(text, |number| number >= 0.0, "of at least 0")
}

fn share(text: &str) -> Result<f64, String> {
    number(text, |number| number > 0.0 && number < 1.0, "above 0 and below 1")
}

fn percent(text: &str) -> Result<f64, String> {
    number(text, |number| (0.0..=100.0).contains(&number), "from 0 to 100")
}
