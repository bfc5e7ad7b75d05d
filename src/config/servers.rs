//! Options of the connections to the backing servers, and of logging.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use clap::{Args, ValueEnum};
use secrecy::{ExposeSecret, SecretString};

use super::parse;
use crate::connection::redis;
use crate::keys::KeyStyle;

/// Connections on which orders are paid and cancelled.
pub const CHANGE_CONNECTIONS: u32 = 4;

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

impl DatabaseConfig {
    /// Connections that one instance may open, if `reads` of them are for reads. One is for its readiness.
    pub fn of_instance(&self, reads: u32) -> u32 {
        self.database_connections + reads + CHANGE_CONNECTIONS + 1
    }
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
    /// Names of the keys of sales and of the stream of orders: `default`, shared with Java nodes, or `cluster`, with braces
    /// around what decides the slot of a Redis Cluster. All nodes on a Redis use the same; by default `cluster` where
    /// --redis-url names a cluster.
    #[arg(long, env = "KEY_STYLE", value_enum)]
    pub key_style: Option<KeyStyle>,
}

impl RedisConfig {
    /// The Redis that these options name.
    ///
    /// # Errors
    /// An address or a file that cannot be used, in one sentence.
    pub fn server(&self) -> anyhow::Result<redis_link::Server> {
        let client_cert = self.redis_cert.as_deref().zip(self.redis_key.as_deref());
        redis::server(&self.redis_url, self.redis_ca.as_deref(), client_cert)
    }

    /// The style of its keys' names.
    ///
    /// # Errors
    /// Settings that contradict each other, with the flags to change.
    pub fn key_style(&self) -> anyhow::Result<KeyStyle> {
        let scheme = self
            .redis_url
            .expose_secret()
            .split("://")
            .next()
            .unwrap_or_default();
        let is_cluster = matches!(scheme, "redis-cluster" | "rediss-cluster");
        let by_default = if is_cluster {
            KeyStyle::Cluster
        } else {
            KeyStyle::Default
        };
        let style = self.key_style.unwrap_or(by_default);
        ensure!(
            style == KeyStyle::Cluster || !is_cluster,
            "--key-style default (KEY_STYLE) has keys of one script in several slots, which a Redis Cluster refuses; leave \
             it out, or use --key-style cluster"
        );
        Ok(style)
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
