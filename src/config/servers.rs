//! Options of the connections to the backing servers, and of logging.

use std::time::Duration;

use clap::{Args, ValueEnum};
use secrecy::SecretString;

use super::parse;

/// Options of the database connection.
#[derive(Args, Clone, Debug)]
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
pub struct RedisConfig {
    /// Redis, as redis://[user:password@]host:port/; redis-sentinel://host:port,host:port/master for a master that
    /// Sentinel monitors; redis-cluster://host:port,host:port for a cluster; rediss… with TLS.
    #[arg(long, env = "REDIS_URL", hide_env_values = true)]
    pub redis_url: SecretString,
    /// Longest wait for a connection, and for each command; milliseconds.
    #[arg(long = "redis-timeout-ms", env = "REDIS_TIMEOUT_MS", default_value = "1000",
          value_parser = parse::milliseconds)]
    pub redis_timeout: Duration,
}

/// Options of logging.
#[derive(Args, Clone, Debug)]
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
