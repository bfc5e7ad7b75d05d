//! The command line and the environment, a struct per concern. Every flag shows its unit and default
//! in `--help`; settings that contradict each other are refused at start, by [`ServeConfig::check`].

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use clap::{Args, Parser, Subcommand, ValueEnum};
use secrecy::SecretString;

use crate::clock::Zone;
use cache::ReadStrategy;

/// A flash-sale backend that cannot be made to lie.
#[derive(Debug, Parser)]
#[command(version, about)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// How to log.
    #[command(flatten)]
    pub log: LogConfig,
}

/// What the binary can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve HTTP until SIGTERM or Ctrl-C, then drain.
    Serve(Box<ServeConfig>),
    /// Create or update the tables; harmless when run again.
    Migrate(DatabaseConfig),
    /// Insert sample shops and vouchers; with --tokens, also sign users in for load tools.
    Seed(SeedConfig),
    /// Hold the ledger against its laws: nothing oversold, no second order, no stock gone astray.
    Audit(AuditConfig),
    /// Check the backing servers, the schema, the scripts, the time zone and the clocks.
    Doctor(DoctorConfig),
}

/// The database.
#[derive(Args, Clone, Debug)]
pub struct DatabaseConfig {
    /// MySQL or MariaDB, as mysql://user:password@host:port/database.
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    pub database_url: SecretString,
    /// Connections each instance may open.
    #[arg(long, env = "DATABASE_CONNECTIONS", default_value_t = 32,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub database_connections: u32,
    /// Longest wait for a connection, and for each step of a transaction; milliseconds.
    #[arg(long = "database-timeout-ms", env = "DATABASE_TIMEOUT_MS", default_value = "3000",
          value_parser = milliseconds)]
    pub database_timeout: Duration,
}

/// Redis.
#[derive(Args, Clone, Debug)]
pub struct RedisConfig {
    /// Redis, as redis://host:port/ (password: redis://:password@host:port/).
    #[arg(long, env = "REDIS_URL", hide_env_values = true)]
    pub redis_url: SecretString,
    /// Longest wait for a connection, and for each command; milliseconds.
    #[arg(long = "redis-timeout-ms", env = "REDIS_TIMEOUT_MS", default_value = "1000",
          value_parser = milliseconds)]
    pub redis_timeout: Duration,
}

/// How to log.
#[derive(Args, Clone, Debug)]
pub struct LogConfig {
    /// What to log, as tracing directives; seckill::user::code=debug shows sign-in codes.
    #[arg(long, env = "RUST_LOG", default_value = "info", global = true)]
    pub log: String,
    /// Lines for people, or JSON for machines.
    #[arg(long, env = "LOG_FORMAT", value_enum, default_value_t = LogFormat::Text, global = true)]
    pub log_format: LogFormat,
}

/// The shape of a log line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum LogFormat {
    /// Coloured where the terminal allows.
    Text,
    /// One object a line.
    Json,
}

/// Everything `serve` needs.
#[derive(Args, Clone, Debug)]
pub struct ServeConfig {
    /// The database.
    #[command(flatten)]
    pub database: DatabaseConfig,
    /// Redis.
    #[command(flatten)]
    pub redis: RedisConfig,
    /// Listening and draining.
    #[command(flatten)]
    pub http: HttpConfig,
    /// Signing in.
    #[command(flatten)]
    pub sign_in: SignInConfig,
    /// Selling.
    #[command(flatten)]
    pub sale: SaleConfig,
    /// What the lab runs its loads against.
    #[command(flatten)]
    pub lab: LabConfig,
}

/// What the lab runs its loads against, with --lab.
#[derive(Args, Clone, Debug)]
pub struct LabConfig {
    /// What stands before all instances, such as http://127.0.0.1:8080; without it they are asked in turn.
    #[arg(long, env = "LAB_ENTRY", value_name = "URL")]
    pub lab_entry: Option<String>,
    /// The other instances, each under its own address; this one may be among them.
    #[arg(long, env = "LAB_PEERS", value_name = "URL", value_delimiter = ',')]
    pub lab_peers: Vec<String>,
}

/// Listening, limits and draining.
#[derive(Args, Clone, Debug)]
pub struct HttpConfig {
    /// Address to listen on; port 0 takes a free one, which the log names.
    #[arg(long = "bind", env = "BIND_ADDR", default_value = "127.0.0.1:8081")]
    pub bind: SocketAddr,
    /// This instance's name among others, as the lab shows it: letters, digits, `.`, `-` and `:`; the address
    /// it listens on by default.
    #[arg(long, env = "NODE_NAME", value_parser = node_name)]
    pub node_name: Option<String>,
    /// Secret that admin writes present as x-admin-token; unset refuses them all.
    #[arg(long, env = "ADMIN_TOKEN", hide_env_values = true)]
    pub admin_token: Option<SecretString>,
    /// Longest time one request may take; milliseconds.
    #[arg(long = "request-timeout-ms", env = "REQUEST_TIMEOUT_MS", default_value = "30000",
          value_parser = milliseconds)]
    pub request_timeout: Duration,
    /// On SIGTERM: how long connections are still accepted after readiness turned false, so that a
    /// balancer can notice; milliseconds.
    #[arg(long = "drain-grace-ms", env = "DRAIN_GRACE_MS", default_value = "500",
          value_parser = milliseconds)]
    pub drain_grace: Duration,
    /// On SIGTERM: longest wait for purchases in flight; milliseconds.
    #[arg(long = "drain-deadline-ms", env = "DRAIN_DEADLINE_MS", default_value = "30000",
          value_parser = milliseconds)]
    pub drain_deadline: Duration,
}

/// Where sessions are kept.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum SessionStore {
    /// In Redis, shared by all nodes.
    Redis,
    /// In each process's memory, by cookie: a second node knows nothing of them. Needs --lab.
    Process,
}

/// Signing in: where sessions are kept, and limits.
#[derive(Args, Clone, Debug)]
pub struct SignInConfig {
    /// Where sessions are kept.
    #[arg(long, env = "SESSIONS", value_enum, default_value_t = SessionStore::Redis)]
    pub sessions: SessionStore,
    /// Codes one phone may be sent within ten minutes.
    #[arg(long, env = "CODE_SENDS", default_value_t = 5)]
    pub code_sends: u32,
    /// Wrong guesses after which a code is void.
    #[arg(long, env = "CODE_ATTEMPTS", default_value_t = 5)]
    pub code_attempts: u32,
    /// Codes one address may ask for within ten minutes; 0 for no limit. This machine itself is not
    /// limited.
    #[arg(long, env = "CODE_SENDS_PER_ADDRESS", default_value_t = 100)]
    pub code_sends_per_address: u32,
    /// Wrong guesses from one address within ten minutes; 0 for no limit. This machine itself is not
    /// limited.
    #[arg(long, env = "CODE_GUESSES_PER_ADDRESS", default_value_t = 50)]
    pub code_guesses_per_address: u32,
}

/// How this instance sells.
#[derive(Args, Clone, Debug)]
pub struct SaleConfig {
    /// Allow the strategies that are unsafe on purpose, on sales published for them. Never in
    /// production.
    #[arg(long, env = "SECKILL_LAB")]
    pub lab: bool,
    /// Zone of the date-times on the wire and of the order ids' day.
    #[arg(long, env = "TIME_ZONE", default_value = "Asia/Shanghai", value_parser = zone)]
    pub time_zone: Zone,
    /// Purchases in flight at once, at most; one more is answered 503 at once. When they are slow, the bound
    /// falls, so that nobody waits longer than a third of --database-timeout-ms (but not below 256).
    #[arg(long, env = "MAX_PURCHASES", default_value_t = 1024,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub max_purchases: u32,
    /// Purchases a second of one user on this instance; 0 for no limit. This machine itself is not limited.
    #[arg(long, env = "PER_USER_PER_SECOND", default_value_t = 20)]
    pub per_user_per_second: u32,
    /// Purchases a second from one address on this instance; 0 for no limit. This machine itself is not
    /// limited.
    #[arg(long, env = "PER_ADDRESS_PER_SECOND", default_value_t = 500)]
    pub per_address_per_second: u32,
    /// Order ids leased from Redis at a time.
    #[arg(long, env = "ID_BLOCK", default_value_t = 1000,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub id_block: u32,
    /// Lease of the reentrant purchase lock, renewed every third of it; milliseconds.
    #[arg(long = "lock-lease-ms", env = "LOCK_LEASE_MS", default_value = "30000",
          value_parser = milliseconds)]
    pub lock_lease: Duration,
    /// Read strategy for shops and shop types: cache-aside, null-caching, mutex, logical-expiry or
    /// layered.
    #[arg(long, env = "SHOP_CACHE", default_value_t = ReadStrategy::Layered)]
    pub shop_cache: ReadStrategy,
    /// Whether ids of shops that do not exist are kept from the database by a Bloom filter.
    #[arg(long, env = "SHOP_FILTER", default_value_t = true, action = clap::ArgAction::Set)]
    pub shop_filter: bool,
    /// Requests a second for one shop on this instance; 0 for no limit.
    #[arg(long, env = "PER_SHOP_PER_SECOND", default_value_t = 50_000)]
    pub per_shop_per_second: u32,
    /// Orders that group-commit puts into one transaction at most.
    #[arg(long, env = "GROUP_BATCH", default_value = "512", value_parser = count)]
    pub group_batch: usize,
    /// Batches of one sale that group-commit has under way at once.
    #[arg(long, env = "GROUP_IN_FLIGHT", default_value_t = 2,
          value_parser = clap::value_parser!(u32).range(1..=8))]
    pub group_in_flight: u32,
    /// Purchases that wait for a sale on group-commit at most; one more is answered 503 at once.
    #[arg(long, env = "GROUP_QUEUE", default_value = "4096", value_parser = count)]
    pub group_queue: usize,
    /// Entries of the stream that are read, and orders that are committed, at a time.
    #[arg(long, env = "STREAM_BATCH", default_value = "512", value_parser = count)]
    pub stream_batch: usize,
    /// Entries that may wait in the stream; one more purchase is answered 503 at once.
    #[arg(long, env = "STREAM_BACKLOG", default_value = "100000", value_parser = count)]
    pub stream_backlog: usize,
    /// How long an entry must be idle before it is taken over from a consumer of another kind, such as a
    /// Java node; milliseconds.
    #[arg(long = "stream-min-idle-ms", env = "STREAM_MIN_IDLE_MS", default_value = "30000",
          value_parser = milliseconds)]
    pub stream_min_idle: Duration,
    /// Seconds after which an unpaid order is cancelled and its voucher put back on sale; 0 for never, which
    /// is the default because a Java node's orders are never paid.
    #[arg(long, env = "UNPAID_SECONDS", default_value_t = 0, value_name = "SECONDS",
          value_parser = clap::value_parser!(u32).range(..=365 * 86_400))]
    pub unpaid_seconds: u32,
    /// Lease of the setnx purchase lock, never renewed; milliseconds.
    #[arg(long = "setnx-lease-ms", env = "SETNX_LEASE_MS", default_value = "30000",
          value_parser = milliseconds)]
    pub setnx_lease: Duration,
}

/// What `seed` inserts.
#[derive(Args, Clone, Debug)]
pub struct SeedConfig {
    /// The database.
    #[command(flatten)]
    pub database: DatabaseConfig,
    /// Redis.
    #[command(flatten)]
    pub redis: RedisConfig,
    /// Users to register and sign in for load tools.
    #[arg(long, default_value_t = 0, requires = "tokens_file",
          value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    pub tokens: u32,
    /// File to write their tokens to, one a line; it is made readable by its owner only.
    #[arg(long, requires = "tokens")]
    pub tokens_file: Option<PathBuf>,
}

/// What `audit` looks at.
#[derive(Args, Clone, Debug)]
pub struct AuditConfig {
    /// The database.
    #[command(flatten)]
    pub database: DatabaseConfig,
    /// Only this voucher's sale; without it, every sale.
    #[arg(long)]
    pub voucher_id: Option<i64>,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// What `doctor` checks.
#[derive(Args, Clone, Debug)]
pub struct DoctorConfig {
    /// The database.
    #[command(flatten)]
    pub database: DatabaseConfig,
    /// Redis.
    #[command(flatten)]
    pub redis: RedisConfig,
    /// Zone of the date-times on the wire and of the order ids' day.
    #[arg(long, env = "TIME_ZONE", default_value = "Asia/Shanghai", value_parser = zone)]
    pub time_zone: Zone,
}

impl ServeConfig {
    /// The longest one purchase may take: reading the sale, looking, a transaction, its commit and
    /// resolving the commit's outcome (two steps), each within the database's limit; a retry may add
    /// one; and four Redis commands. With group-commit: reading the sale, up to three in the queue and
    /// in a batch that had to be split, and then the transaction, its commit and resolving it.
    pub fn purchase_limit(&self) -> Duration {
        8 * self.database.database_timeout + 4 * self.redis.redis_timeout
    }

    /// Refuses settings that contradict each other.
    pub fn check(&self) -> anyhow::Result<()> {
        let purchase = self.purchase_limit();
        ensure!(
            self.sale.lab || self.sign_in.sessions == SessionStore::Redis,
            "--sessions process loses every session with its process and knows none of another node: \
             it is for learning, and needs --lab"
        );
        ensure!(
            self.http.request_timeout > purchase,
            "--request-timeout-ms ({:?}) must be longer than a purchase may take ({purchase:?}, from \
             --database-timeout-ms and --redis-timeout-ms), or replies would be cut off",
            self.http.request_timeout
        );
        ensure!(
            self.sale.setnx_lease > purchase,
            "--setnx-lease-ms ({:?}) must be longer than a purchase may take ({purchase:?}): the setnx \
             lock is only safe while its lease outlives the work",
            self.sale.setnx_lease
        );
        ensure!(
            self.sale.lock_lease >= 3 * self.redis.redis_timeout,
            "--lock-lease-ms ({:?}) must be at least three times --redis-timeout-ms ({:?}), or one slow \
             renewal would lose the lock",
            self.sale.lock_lease,
            self.redis.redis_timeout
        );
        ensure!(
            self.http.drain_deadline > purchase + self.http.drain_grace,
            "--drain-deadline-ms ({:?}) must be longer than --drain-grace-ms plus what a purchase may \
             take ({purchase:?}), or purchases would be cut off",
            self.http.drain_deadline
        );
        Ok(())
    }
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    match text.parse::<u64>() {
        Ok(0) => Err("must be at least 1 millisecond".to_owned()),
        Ok(count) if count <= 86_400_000 => Ok(Duration::from_millis(count)),
        Ok(_) => Err("must be at most a day, 86400000 milliseconds".to_owned()),
        Err(_) => Err("must be a whole number of milliseconds".to_owned()),
    }
}

fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=100_000) => Ok(count),
        _ => Err("must be a whole number, 1 to 100000".to_owned()),
    }
}

fn node_name(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || ".-:".contains(c);
    if (1..=64).contains(&text.len()) && text.chars().all(plain) {
        Ok(text.to_owned())
    } else {
        Err("must be 1 to 64 letters, digits, `.`, `-` or `:`".to_owned())
    }
}

fn zone(text: &str) -> Result<Zone, String> {
    text.parse().map(Zone).map_err(|_| {
        format!("`{text}` is not a time zone of the IANA database, such as Asia/Shanghai or UTC")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serve(extra: &[&str]) -> anyhow::Result<()> {
        let base =
            ["seckill", "serve", "--database-url", "mysql://h/d", "--redis-url", "redis://h/"];
        match Cli::try_parse_from(base.iter().chain(extra))?.command {
            Command::Serve(config) => config.check(),
            other => panic!("parsed as {other:?}"),
        }
    }

    #[test]
    fn the_defaults_do_not_contradict_each_other() {
        serve(&[]).unwrap();
    }

    #[test]
    fn contradictions_and_bad_values_are_refused() {
        for bad in [
            ["--request-timeout-ms", "20000"],
            ["--setnx-lease-ms", "1000"],
            ["--lock-lease-ms", "2000"],
            ["--drain-deadline-ms", "1000"],
            ["--database-timeout-ms", "0"],
            ["--database-connections", "0"],
            ["--time-zone", "Moon/Crater"],
            ["--sessions", "process"],
        ] {
            assert!(serve(&bad).is_err(), "{bad:?}");
        }
    }
}
