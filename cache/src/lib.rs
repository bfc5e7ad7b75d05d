//! Reads that survive the crowd: a cache over Redis and this process's memory.
//!
//! A small library of its own: it names nothing of the crate outside this folder, no feature, no
//! web framework and no database. What it caches is anything serde can write as JSON; where it
//! comes from is a closure ([`Load`]).
//!
//! # Four problems and their cures
//! - **Penetration**: ids that do not exist reach the database every time. Cure: remember nulls;
//!   for unbounded id spaces, a [`Bloom`] filter.
//! - **Breakdown**: a hot key expires, and every reader at once loads it. Cure: one load per
//!   process (single flight) and per cluster (mutex), or serving the old value meanwhile.
//! - **Avalanche**: keys stored together expire together. Cure: [`Ttl::jittered`].
//! - **Outage**: Redis is away. Cure: a circuit breaker, and a bounded number of loads at once.
//!
//! # The ways to read
//! | [`Kind`] | Loads per expiry | Absent ids | A reader waits for | Costs |
//! |---|---|---|---|---|
//! | `cache-aside` | one per reader | reach the database | the load | – |
//! | `null-caching` | one per reader | one load per 2 min | the load | room for nulls |
//! | `mutex` | one | one load per 2 min | one load | one more round trip per load |
//! | `logical-expiry` | one | one load per 2 min | nothing | stale answers, keys that never leave |
//! | `layered` | one | one load per 2 min | nothing, while it is read often | memory in each node |
//!
//! # What may be relied upon
//! - **Changes win.** Write the database, then [`Cache::invalidate`]. Once that returned
//!   [`Delivery::Done`], no load that began before can be stored: a load stores under a *lease*
//!   which the invalidation removes (the idea of "Scaling Memcache at Facebook", NSDI 2013), and
//!   memory entries carry a stamp which it changes. Other nodes forget what they have in memory as
//!   soon as the message arrives; if it is lost with its connection, after
//!   [`Policy::local_ttl`] at the latest. What cannot be delivered is retried until it is.
//!   A node of another make that only deletes the key does not know leases: a load of ours that
//!   was on its way may then store what it saw, for one time to live. So may a Redis that comes
//!   back from an old snapshot bring back what was deleted since: run it with an append-only file,
//!   or with no persistence at all.
//! - **Nobody waits without bound**: for another node's load at most [`Policy::wait_limit`], for a
//!   turn [`CacheConfig::load_wait`], for a load [`CacheConfig::load_limit`], for Redis
//!   [`CacheConfig::redis_timeout`] (and not at all while it is known to be away).
//! - **A reader that goes away** does not break off the load others wait for. A load that panics
//!   frees the mutex at once; a process that dies, after [`Policy::mutex_ttl`].
//! - A mutex is removed only by its owner. A Redis that is emptied costs time and nothing else.
//!
//! # The parts
//! [`Cache`] puts them together · `read` the ways to read · `rebuild` one load per cluster ·
//! `flight` one per process · `load` limits and panics · `local` the memory · `listener` and
//! `outbox` invalidations in and out · `conn`, `breaker` Redis · `value` the formats · [`Bloom`].
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use cache_aside::{Cache, CacheConfig, Policy};
//!
//! let client = redis::Client::open("redis://127.0.0.1/")?;
//! let manager = redis::aio::ConnectionManager::new(client.clone()).await?;
//! let cache = Cache::new(manager, client, CacheConfig::default());
//! let policy = Policy::named("shop");
//! let load = || async { Ok::<_, std::io::Error>(Some("from the database".to_owned())) };
//! let shop = cache.read_layered("cache:shop:7", &policy, load).await?;
//! assert_eq!(shop.as_ref().map(|shop| shop.as_str()), Some("from the database"));
//! cache.invalidate(&["cache:shop:7"]).await;
//! cache.shutdown().await;
//! # Ok(())
//! # }
//! ```

mod bloom;
mod breaker;
mod config;
mod conn;
mod error;
mod flight;
mod handle;
mod listener;
mod load;
mod local;
mod outbox;
mod policy;
mod read;
mod rebuild;
mod scripts;
mod stats;
mod supervise;
mod ttl;
mod value;
mod warm;

pub use bloom::{Bloom, BloomSize, FillError};
pub use config::CacheConfig;
pub use error::{Error, ReadError};
pub use handle::{Cache, Delivery};
pub use load::Load;
pub use policy::{Counters, Kind, Policy, UnknownKind};
pub use scripts::SCRIPTS;
pub use stats::{CacheCounts, CacheStats, PolicyStats};
pub use ttl::Ttl;
pub use value::{Cached, Value};
pub use warm::WarmUp;

use handle::Inner;

/// The key of the lease under which `key` is loaded. An invalidation of `key` removes it; for those
/// who build something under `key` that is not a JSON value, and must not store what is outdated.
pub fn lease_key(key: &str) -> String {
    conn::lease_of(key)
}
