//! Options of `loadtest plan`.

use clap::Args;

use crate::options::{number, positive};

/// A sale, and what it is to run on.
#[derive(Debug, Clone, Args)]
pub struct PlanOptions {
    /// People who want to buy
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000_000))]
    pub buyers: u64,
    /// Attempts of each, on average
    #[arg(long, default_value_t = 3.0, value_parser = positive)]
    pub tries: f64,
    /// Vouchers on sale, all in one sale
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub stock: u64,
    /// Within how many seconds 63 % of the attempts come, and 86 % within twice that; 0: all at once
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS", value_parser = not_negative)]
    pub over: f64,
    /// The sale's strategy: group-commit, reentrant-lock or stream
    #[arg(long, default_value = "group-commit", value_name = "NAME")]
    pub strategy: String,
    /// Instances of the service
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub nodes: u32,
    /// Processors of each instance
    #[arg(long, default_value_t = 4.0, value_name = "CORES", value_parser = positive)]
    pub node_cores: f64,
    /// Redis servers (masters), over which sessions and locks are spread
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    pub redis_shards: u32,
    /// Processors of the database
    #[arg(long, default_value_t = 8.0, value_name = "CORES", value_parser = positive)]
    pub database_cores: f64,
    /// Write the tables of docs/SCALING.md, in the checkout this was built in
    #[arg(long)]
    pub write: bool,
}

impl PlanOptions {
    /// Attempts of all buyers.
    pub fn attempts(&self) -> f64 {
        (self.buyers as f64 * self.tries).max(1.0)
    }
}

fn not_negative(text: &str) -> Result<f64, String> {
    number(text, |value| value >= 0.0, "of at least 0")
}
