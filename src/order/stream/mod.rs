//! The `stream` rung: a script in Redis admits, a consumer group commits.
//!
//! **Streams in brief.** `stream.orders` is a log of admitted orders. A *group* hands each entry to one of
//! its *consumers* (a node of either language) and lists it as *pending* until somebody acknowledges it.
//! A consumer that dies leaves pending entries behind, which another takes over. So an entry is delivered
//! at least once, and perhaps again after its order was committed.
//!
//! - [`admit`]: one script takes stock, claim and entry together; the buyer is told *pending*.
//! - [`consumer`]: reads entries and has them decided; [`decide`]: commits them in batches by the store code
//!   of group commit, and acknowledges after the commit, never before.
//! - [`place`]: what became of an admitted order, for its buyer.
//! - [`keeper`]: notices a Redis that lost its data, adds again what this node admitted and nobody decided
//!   ([`outstanding`]), takes over from dead consumers, trims.
//! - [`gate`]: builds a sale's stock and claims anew from the database, with what is in flight counted.
//!
//! **What holds.** The database decides: its constraints refuse what a lying gate lets in. An entry is
//! settled by one script, guarded by its acknowledgement, so its stock and claim return once at most.
//! Every step can be repeated: admission by the order's id, the commit likewise. That id is told before the
//! database could refuse it, so it must be nobody else's: it is admitted only in the *epoch* in which its
//! number was leased, and in a new epoch nobody is admitted for a second, so that no second of an older id
//! comes again.
//!
//! **What does not.** An order that a Redis lost together with the node that had admitted it is lost; its
//! buyer was told "pending", never "ordered". A refusal is remembered in Redis alone: once that is lost, the
//! order is one that does not exist. Scripts here build keys from ids: no Redis Cluster.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::Client;
use redis::aio::ConnectionManager;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::group::batch;
use super::store::OrderStore;
use crate::error::Error;
use crate::id::Ids;

mod admit;
mod consumer;
mod decide;
mod entry;
mod gate;
mod keeper;
mod outstanding;
mod place;
mod scripts;
mod stats;

pub use place::Found;
pub use stats::Stats;

/// The stream. Fields of an entry: `userId`, `voucherId`, `id`.
pub const STREAM: &str = "stream.orders";
/// Its consumer group, shared with Java nodes.
pub const GROUP: &str = "g1";
/// Where entries go that cannot be made into orders, with the reason.
pub const DEAD: &str = "stream.orders.dead";
/// Which Redis, and which of its data, the gates were built on.
const EPOCH: &str = "stream.orders.epoch";
/// When each of our consumers was last seen.
const CONSUMERS: &str = "stream.orders.consumers";
/// How often an entry failed by its own fault.
const FAILURES: &str = "stream.orders.failures";
/// What our consumers' names begin with; the rest is random.
const PREFIX: &str = "seckill-";

/// How long a pending or refused place is remembered, s: a day.
const REMEMBERED_S: u64 = 86_400;

/// How much may gather, and how long things may take.
#[derive(Clone, Copy, Debug)]
pub struct StreamLimits {
    /// Entries read, and orders committed, at a time.
    pub batch: usize,
    /// Entries that may wait in the stream; one more purchase is told [`Error::Overloaded`].
    pub backlog: usize,
    /// How long an entry must be idle before it is taken from a consumer of another kind.
    pub min_idle: Duration,
    /// Longest time one database step may take.
    pub timeout: Duration,
    /// Longest time one Redis command may take.
    pub redis_timeout: Duration,
}

/// The stream of this process. Cheap to clone.
#[derive(Clone)]
pub struct Stream(Arc<Inner>);

struct Inner {
    client: Client,
    redis: ConnectionManager,
    store: OrderStore,
    ids: Arc<Ids>,
    limits: StreamLimits,
    batches: batch::Tools,
    /// This process's name in the group.
    name: String,
    outstanding: outstanding::Outstanding,
    gates: gate::Gates,
    admissions: admit::Trips,
    stats: Stats,
    /// The epoch that this node knows.
    epoch: Mutex<Arc<str>>,
    /// Entries were taken over: the consumer is to read its own pending ones.
    taken_over: AtomicBool,
    /// The consumer met a group that is gone.
    look: Notify,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Stream {
    /// Joins the group and begins to consume, until [`Stream::shutdown`].
    ///
    /// # Errors
    /// Where Redis or the database cannot be asked for the first round.
    pub async fn start(
        client: Client,
        redis: ConnectionManager,
        store: OrderStore,
        ids: Arc<Ids>,
        limits: StreamLimits,
    ) -> Result<Self, Error> {
        let admissions = admit::start(redis.clone(), limits.backlog);
        let inner = Arc::new(Inner {
            admissions,
            batches: batch::Tools::new(store.clone(), ids.clone(), limits.timeout),
            client,
            redis,
            store,
            ids,
            limits,
            name: format!("{PREFIX}{}", uuid::Uuid::new_v4()),
            outstanding: outstanding::Outstanding::default(),
            gates: gate::Gates::default(),
            stats: Stats::default(),
            epoch: Mutex::new("".into()),
            taken_over: AtomicBool::new(false),
            look: Notify::new(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        });
        // Before the first sale is published: a gate that is set before the epoch is taken for lost.
        inner.keep().await?;
        inner.tasks.spawn(inner.clone().keep_on());
        inner.tasks.spawn(inner.clone().consume());
        Ok(Stream(inner))
    }

    /// What was done so far, and how long the stream is.
    pub fn stats(&self) -> &Stats {
        &self.0.stats
    }

    /// Finishes the batch under way and leaves the group. What nobody has read is left to other nodes. To be
    /// called when no purchase can come in any more.
    pub async fn shutdown(&self) {
        self.0.stop.cancel();
        self.0.tasks.close();
        self.0.tasks.wait().await;
        self.0.admissions.shutdown().await;
    }
}

impl Inner {
    fn stopped(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Sleeps, or less if the process is to stop.
    async fn pause(&self, time: Duration) {
        let nap = tokio::time::sleep(time);
        // `None` when stopped: whoever calls looks for that.
        self.stop.run_until_cancelled(nap).await.unwrap_or_default();
    }

    /// Takes note of the epoch. In a new one the id counter may have started over: then all nodes lease
    /// from the new counter, for an entry's id cannot be replaced when another node has used it.
    fn enter(&self, epoch: &str) {
        let mut known = self.epoch.lock().unwrap_or_else(PoisonError::into_inner);
        if **known != *epoch {
            *known = epoch.into();
            self.ids.abandon_lease();
        }
    }

    /// The epoch that this node knows. An id that is drawn afterwards was leased in it, or in a later one.
    fn epoch(&self) -> Arc<str> {
        self.epoch.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn read_own_again(&self) {
        self.taken_over.store(true, Ordering::SeqCst);
    }
}
