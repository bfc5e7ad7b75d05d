//! Two-level read cache, process memory and Redis, with coordinated loads and invalidations.
//!
#![doc = include_str!("../README.md")]

// The source, from the top: `read` has the strategies and the rebuild that they share; `cache` is the handle;
// `single_flight` lets concurrent readers share one load; `load` limits how many loads run; `invalidation` sends and
// receives invalidations; `local_cache` is the level in memory; `connection` is Redis behind a circuit breaker;
// `encoding` has the formats in Redis; `bloom` is the filter. Files import each other by their own paths, never through
// this one.
mod bloom;
mod cache;
mod config;
mod connection;
mod encoding;
mod error;
mod invalidation;
mod keys;
mod load;
mod local_cache;
mod policy;
mod read;
mod single_flight;
mod stats;
mod strategy;
mod value;

pub use bloom::filter::{BloomFillError, BloomFilter};
pub use bloom::size::BloomSize;
pub use cache::{Cache, InvalidationStatus};
pub use config::CacheConfig;
pub use error::{Error, ReadError};
pub use keys::lease_key;
pub use policy::CachePolicy;
pub use redis_link::{AddressError, Redis, Server, redis};
pub use stats::{CacheCounts, CacheStats, PolicyStats};
pub use strategy::ReadStrategy;
pub use value::{CacheValue, CachedValue, ReadResult};
