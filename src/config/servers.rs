//! Options of the connections to the backing servers, and of logging.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use secrecy::SecretString;

use super::parse;
use crate::connection::redis;

/// Options of the database connection.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Database")]
pub struct DatabaseConfig {
    /// MySQL or MariaDB, as mysql://user:password@host:port/database, with TLS by ?ssl-mode=VERIFY_IDENTITY&ssl-ca=FILE.
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    pub database_url: SecretString,
    /// Connections each instance may open.
    #[arg(long, env = "DATABASE_CONNECTIONS", default_value_t = 32,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub database_connections: u32,
    /// Longest wait for a connection, and for each step of a transaction; milliseconds.
    #[arg(long = "database-timeout-ms", env = "DATABASE_TIMEOUT_MS", default_value = "3000",
          value_parser = parse::milliseconds)]
    pub database_timeout: Duration,
}

/// Options of the Redis connection.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Redis")]
pub struct RedisConfig {
    /// Redis, as redis://host:port/ or redis://user:password@host:port/; redis-sentinel://host:port,host:port/master for
    /// a master that Sentinel monitors; redis-cluster://host:port,host:port for a cluster; rediss… with TLS.
    #[arg(long, env = "REDIS_URL", hide_env_values = true)]
    pub redis_url: SecretString,
    /// The authority that signed the certificates of the Redis servers, a file in PEM format; by default those that the
    /// system trusts.
    #[arg(long, env = "REDIS_CA", value_name = "FILE")]
    pub redis_ca: Option<PathBuf>,
    /// The certificate to show to the Redis servers that ask for one, a file in PEM format; with --redis-key.
    #[arg(long, env = "REDIS_CERT", value_name = "FILE", requires = "redis_key")]
    pub redis_cert: Option<PathBuf>,
    /// The key of --redis-cert, a file in PEM format.
    #[arg(long, env = "REDIS_KEY", value_name = "FILE", requires = "redis_cert")]
    pub redis_key: Option<PathBuf>,
    /// Longest wait for a connection, and for each command; milliseconds.
    #[arg(long = "redis-timeout-ms", env = "REDIS_TIMEOUT_MS", default_value = "1000",
          value_parser = parse::milliseconds)]
    pub redis_timeout: Duration,
}

impl RedisConfig {
    /// The Redis that these options name.
    ///
    /// # Errors
    /// An address or a file that cannot be used, in one sentence.
    pub fn server(&self) -> anyhow::Result<lock::Server> {
        let own = self.redis_cert.as_deref().zip(self.redis_key.as_deref());
        redis::server_with(&self.redis_url, self.redis_ca.as_deref(), own)
    }
}

/// Options of logging.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Logging")]
pub struct LogConfig {
    /// What to log, as tracing directives; seckill::user::code=debug shows sign-in codes.
    #[arg(long, env = "RUST_LOG", default_value = "info", global = true)]
    pub log: String,
    /// Text for people, or JSON for programs.
    #[arg(long, env = "LOG_FORMAT", value_enum, default_value_t = LogFormat::Text, global = true)]
    pub log_format: LogFormat,
}

/// The format of a log line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum LogFormat {
    /// Coloured where the terminal allows.
    Text,
    /// One JSON object a line.
    Json,
}
