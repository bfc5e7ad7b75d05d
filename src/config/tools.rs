//! Options of the subcommands besides `serve`.

use std::path::PathBuf;

use clap::Args;

use super::parse;
use super::servers::{DatabaseConfig, RedisConfig};
use crate::clock::Zone;

/// Options of `seed`.
#[derive(Args, Clone, Debug)]
#[allow(missing_docs)] // the servers are documented by their types
pub struct SeedConfig {
    #[command(flatten)]
    pub database: DatabaseConfig,
    #[command(flatten)]
    pub redis: RedisConfig,
    /// Users to register and sign in for load tools.
    #[arg(long, default_value_t = 0, requires = "tokens_file",
          value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    pub tokens: u32,
    /// File for their tokens, one a line; readable by its owner only.
    #[arg(long, requires = "tokens")]
    pub tokens_file: Option<PathBuf>,
}

/// Options of `audit`.
#[derive(Args, Clone, Debug)]
#[allow(missing_docs)] // the servers are documented by their types
pub struct AuditConfig {
    #[command(flatten)]
    pub database: DatabaseConfig,
    /// Time zone of the seconds in order ids: that of the nodes.
    #[arg(long, env = "TIME_ZONE", default_value = "Asia/Shanghai", value_parser = parse::zone)]
    pub time_zone: Zone,
    /// Only this voucher's sale; without it, every sale.
    #[arg(long)]
    pub voucher_id: Option<i64>,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// Options of `doctor`.
#[derive(Args, Clone, Debug)]
#[allow(missing_docs)] // the servers are documented by their types
pub struct DoctorConfig {
    #[command(flatten)]
    pub database: DatabaseConfig,
    #[command(flatten)]
    pub redis: RedisConfig,
    /// Connections each instance may open for reads, besides --database-connections.
    #[arg(long, env = "READ_CONNECTIONS", default_value_t = 8,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub read_connections: u32,
    /// Time zone of date-times in requests and replies, and of the day of order ids.
    #[arg(long, env = "TIME_ZONE", default_value = "Asia/Shanghai", value_parser = parse::zone)]
    pub time_zone: Zone,
}
