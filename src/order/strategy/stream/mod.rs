//! Stream: a script in Redis admits the buyer and adds an entry to a Redis stream; a consumer group commits the orders. The
//! buyer gets an id at once and looks the order up by it. The fastest answer, and the only one that comes before the commit,
//! so it says *pending*. The database's conditional decrement and unique index decide all the same: a stock counter that
//! admits too many causes refusals, never an oversell.
//!
//! **The life of a purchase**, in the order of the code; docs/STREAM.md says what a Redis stream is, by which rules, and what
//! happens when things fail:
//!
//! 1. `admit`: one script takes one of the stock counter, a claim for the user, an entry, and notes the order as pending.
//! 2. `consume`: a consumer of the group, in every process, reads entries; `decide` commits those of a sale in one
//!    transaction ([`crate::order::batch`]), or writes the refusal of an order as a row under its id. **The database decides,
//!    yes and no.** Then one script *resolves* the entries: takes them out of stream and hash, and gives back what a refused
//!    one had taken.
//! 3. `lookup`: an order is its row, or a refusal, or pending, or it does not exist and never will.
//!
//! Beside it, `open` counts sales: their stock counters and claims are what the database and the stream say, under a *mark*
//! (`Mark`) that ends when Redis may have lost data. `java` puts right what consumers of another kind drop or keep.

use std::sync::{Arc, Weak};

use redis::AsyncCommands;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connection::coalescer::Coalescer;
use crate::connection::redis::{Redis, RoutedConnection};
use crate::error::Error;
use crate::id::{IdGenerator, LocalClock};
use crate::keys::Keys;
use crate::order::batch::BatchCommitter;
use crate::order::model::NewOrder;
use crate::order::store::OrderStore;
use crate::voucher::stock_events::Recounts;

mod admit;
mod consume;
mod decide;
mod entry;
mod java;
mod lookup;
mod member;
mod open;
mod stats;

use member::{Ask, CONSUMER_PREFIX, Member, Opener, RedisClock};
pub use member::{OrderStream, StreamLimits};
use stats::StreamStats;

/// Purchases that one call admits at most, so that it never keeps Redis from others for long.
const BATCH: usize = 64;

/// What a member of the stream works with.
pub struct StreamParts {
    /// The Redis servers.
    pub nodes: Redis,
    /// Commands to the master.
    pub redis: RoutedConnection,
    /// The names of keys.
    pub keys: Keys,
    /// The SQL, on the connections of purchases.
    pub store: OrderStore,
    /// The same, on those of reads.
    pub reads: OrderStore,
    /// Order ids.
    pub ids: Arc<IdGenerator>,
    /// The sales that others want to be counted again.
    pub recounts: Recounts,
    /// The clock of their seconds.
    pub seconds: LocalClock,
    /// Bounds.
    pub limits: StreamLimits,
}

impl OrderStream {
    /// Joins the group and consumes, until [`OrderStream::shutdown`].
    ///
    /// # Errors
    /// Where Redis cannot be asked.
    pub async fn start(parts: StreamParts) -> Result<Self, Error> {
        let StreamParts { nodes, redis, keys, store, reads, ids, recounts, seconds, limits } =
            parts;
        let member = Arc::new_cyclic(|member: &Weak<Member>| {
            let member = member.clone();
            Member {
                committer: BatchCommitter::new(store.clone(), limits.timeout),
                consumer: format!("{CONSUMER_PREFIX}{}", uuid::Uuid::new_v4()),
                admissions: Coalescer::start(BATCH, move |orders: Vec<NewOrder>| {
                    let member = member.upgrade();
                    async move {
                        match member {
                            Some(member) => member.admit(&orders).await,
                            None => Vec::new(),
                        }
                    }
                }),
                opener: Opener::new(recounts),
                clock: RedisClock::default(),
                arrived: Notify::new(),
                stats: StreamStats::default(),
                tasks: TaskTracker::new(),
                stop: CancellationToken::new(),
                nodes,
                redis,
                keys,
                store,
                reads,
                ids,
                seconds,
                limits,
            }
        });
        if member.redis.clone().exists("stream.orders.epoch").await? {
            tracing::warn!(
                "keys of an older version are in Redis (stream.orders.epoch and others): they are not used"
            );
        }
        member.look(Ask::Tidy("")).await?;
        member.tasks.spawn(member.clone().consume());
        member.tasks.spawn(member.clone().keep_open());
        member.tasks.spawn(member.clone().watch_others());
        Ok(OrderStream(member))
    }

    /// Counters of this process, and the state of the stream.
    pub fn stats(&self) -> &StreamStats {
        &self.0.stats
    }

    /// Finishes the transactions in flight and leaves the group. What was not read is left to other nodes. To be called when no
    /// purchase can come in any more.
    pub async fn shutdown(&self) {
        let member = &self.0;
        member.stop.cancel();
        member.tasks.close();
        member.tasks.wait().await;
        if let Err(error) = member.look(Ask::Tidy(&member.consumer)).await {
            tracing::warn!(%error, "the group could not be left");
        }
        member.admissions.shutdown().await;
    }
}
