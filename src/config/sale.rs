//! Options of sales: time zone, limits, locks, the shop cache, group commit, the stream.

use std::time::Duration;

use cache::ReadStrategy;
use clap::Args;
use clap::builder::RangedU64ValueParser;

use super::parse;
use crate::clock::Zone;

/// Options of sales.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sales")]
pub struct SaleConfig {
    /// For learning, never in production: allow sales on strategies that are unsafe on purpose, show sign-in codes, keep
    /// sessions in this process where asked to, and tell the steps of a request in a header. `loadtest lab` needs it.
    #[arg(long, env = "SECKILL_LAB")]
    pub lab: bool,
    /// Time zone of date-times in requests and replies, and of the day of order ids.
    #[arg(long, env = "TIME_ZONE", default_value = "Asia/Shanghai", value_parser = parse::zone)]
    pub time_zone: Zone,
    /// Most purchases in flight at once, and as many other requests of signed-in users; others are refused with 503. Lower,
    /// fewer wait in vain for a database that is slow; higher, group-commit has larger batches.
    #[arg(long, env = "MAX_PURCHASES", default_value_t = 1024,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub max_purchases: u32,
    /// Purchases a second of one user on this instance, and as many other requests; 0 for no limit.
    #[arg(long, env = "PER_USER_PER_SECOND", default_value_t = 20)]
    pub per_user_per_second: u32,
    /// Purchases a second from one client address on this instance, and as many other requests of signed-in users; 0 for no
    /// limit.
    #[arg(long, env = "PER_ADDRESS_PER_SECOND", default_value_t = 500)]
    pub per_address_per_second: u32,
    /// Order ids leased from Redis at a time. 1: no leases.
    #[arg(long, env = "ID_BLOCK", default_value_t = 4000,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub id_block: u32,
    /// Lease of the reentrant purchase lock, renewed every third of it; milliseconds.
    #[arg(long = "lock-lease-ms", env = "LOCK_LEASE_MS", default_value = "30000",
          value_parser = parse::milliseconds)]
    pub lock_lease: Duration,
    /// Read strategy for shops and shop types: cache-aside, null-caching, mutex, logical-expiry or
    /// layered.
    #[arg(long, env = "SHOP_CACHE", default_value_t = ReadStrategy::Layered)]
    pub shop_cache: ReadStrategy,
    /// Whether a Bloom filter keeps ids of shops that do not exist from the database.
    #[arg(long, env = "SHOP_FILTER", default_value_t = true, action = clap::ArgAction::Set)]
    pub shop_filter: bool,
    /// Most reads of shops, voucher lists, orders and users that run at once, each on a connection of its own besides
    /// --database-connections: anybody may ask for them, in any number, and purchases never wait for them.
    #[arg(long, env = "READ_CONNECTIONS", default_value_t = 8,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub read_connections: u32,
    /// Requests a second for one shop on this instance; 0 for no limit.
    #[arg(long, env = "PER_SHOP_PER_SECOND", default_value_t = 50_000)]
    pub per_shop_per_second: u32,
    /// Transactions that group-commit runs at once. One makes the largest batches, and an order the cheapest; more use a
    /// database that has idle processors.
    #[arg(long, env = "GROUP_IN_FLIGHT", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=8))]
    pub group_in_flight: u32,
    /// Most stream entries read, and orders committed, at a time; at most 8192, which one statement and one script can hold.
    #[arg(long, env = "STREAM_BATCH", default_value_t = 512,
          value_parser = RangedU64ValueParser::<usize>::new().range(1..=8192))]
    pub stream_batch: usize,
    /// Most users who have pending orders on the strategy stream; further purchases are refused with 503.
    #[arg(long, env = "STREAM_BACKLOG", default_value_t = 100_000,
          value_parser = RangedU64ValueParser::<usize>::new().range(1..=100_000))]
    pub stream_backlog: usize,
    /// How long a consumer of the stream, ours or a Java node's, may keep an entry before another claims it; milliseconds.
    #[arg(long = "stream-min-idle-ms", env = "STREAM_MIN_IDLE_MS", default_value = "10000",
          value_parser = parse::milliseconds)]
    pub stream_min_idle: Duration,
    /// How long after Redis lost data, or after its id was drawn, an order that is found nowhere is answered with 503 instead
    /// of "no such order"; milliseconds. Longer than a master that was replaced may go on taking writes, and the same on all
    /// instances.
    #[arg(long = "stream-unsure-ms", env = "STREAM_UNSURE_MS", default_value = "30000",
          value_parser = parse::milliseconds)]
    pub stream_unsure: Duration,
    /// Seconds after which an unpaid order is cancelled and its voucher put back on sale; 0 for never, which
    /// is the default because a Java node's orders are never paid.
    #[arg(long, env = "UNPAID_SECONDS", default_value_t = 0, value_name = "SECONDS",
          value_parser = clap::value_parser!(u32).range(..=365 * 86_400))]
    pub unpaid_seconds: u32,
}
