//! Options of a chaos run, also which servers it breaks: one Redis or several, one database or a primary with a replica.

use std::path::PathBuf;

use clap::{
    Args, ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser},
    value_parser,
};
use testkit::{clock, database_server::Product, replicated_database::Replication};

use crate::options::service;

/// How Redis is run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum RedisLayout {
    /// One server.
    #[default]
    Single,
    /// A master and a replica that three sentinels watch.
    Sentinel,
    /// A cluster of three masters with a replica each.
    Cluster,
}

fn database() -> impl TypedValueParser<Value = Replication> {
    let names = PossibleValuesParser::new(["single", "replicated", "asynchronous"]);
    names.map(|name| match name.as_str() {
        "replicated" => Replication::SemiSynchronous,
        "asynchronous" => Replication::Asynchronous,
        _ => Replication::None,
    })
}

/// The servers of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Args)]
pub struct Layout {
    /// How Redis is run
    #[arg(long, value_enum, default_value_t, value_name = "LAYOUT")]
    pub redis: RedisLayout,
    /// One database; a primary with a semi-synchronous replica, of which a failover may lose nothing; or with an
    /// asynchronous one: what a failover loses is counted apart
    #[arg(long, value_parser = database(), default_value = "single", value_name = "LAYOUT")]
    pub database: Replication,
    /// Whether a library that fakes the time is installed, without which some faults cannot be injected.
    #[arg(skip = clock::library().is_some())]
    pub faketime: bool,
    /// Whether the environment asks for OceanBase.
    #[arg(skip = Product::chosen().is_ok_and(|product| product == Product::OceanBase))]
    pub oceanbase: bool,
}

impl Layout {
    /// Whether a Redis server can be replaced by another, which may lack its last writes.
    pub fn redis_fails_over(self) -> bool {
        self.redis != RedisLayout::Single
    }
}

/// Options of a chaos run.
#[derive(Debug, Clone, Args)]
pub struct ChaosOptions {
    /// Rounds to run; the strategies take turns
    #[arg(long, default_value_t = 30, value_parser = value_parser!(u32).range(1..=10_000))]
    pub rounds: u32,
    /// Rounds at a time, each on servers of its own: a round in which Redis loses data mostly waits
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..=8), value_name = "ROUNDS")]
    pub at_once: u32,
    #[command(flatten)]
    #[allow(missing_docs)] // A doc comment would become the help of the whole command.
    pub layout: Layout,
    /// The seed of the faults, their times and the buyers' [default: a random one, which is printed]
    #[arg(long, default_value_t = rand::random_range(1..1_000_000), hide_default_value = true)]
    pub seed: u64,
    /// Only this one of the rounds, to repeat it; recoveries are left out
    #[arg(long, value_name = "ROUND", value_parser = value_parser!(u32).range(1..=10_000))]
    pub only_round: Option<u32>,
    /// Buyers of a round, three attempts each
    #[arg(long, default_value_t = 600, value_parser = value_parser!(u32).range(12..=20_000))]
    pub buyers: u32,
    /// How often to measure each recovery of throughput; 0 for not at all
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u32).range(..=100))]
    pub recoveries: u32,
    /// The service's binary [default: `seckill` beside this one]
    #[arg(long = "seckill", value_name = "FILE", default_value_os_t = service(), hide_default_value = true)]
    pub program: PathBuf,
    /// Print every fault, and why some cannot be drawn here; run nothing
    #[arg(long)]
    pub list: bool,
}
