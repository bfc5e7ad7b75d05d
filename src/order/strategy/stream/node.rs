//! [`StreamNode`]: this process as a member of one shard's stream, shared by its requests, its consumer and its maintenance.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::admission_script::{AdmissionBatcher, AdmissionScript};
use super::deliveries::{Deliveries, Delivery};
use super::entry_index::EntryIndex;
use super::held::HeldCalls;
use super::lease::Lease;
use super::names::CONSUMER_PREFIX;
use super::rebuilds::Rebuilds;
use super::stats::StreamStats;
use super::unconfirmed::UnconfirmedOrders;
use crate::connection::redis::{Redis, RoutedConnection};
use crate::id::IdGenerator;
use crate::keys::ShardKeys;
use crate::order::batch::BatchCommitter;
use crate::order::store::OrderStore;

/// Bounds and time limits of the stream.
#[derive(Clone, Copy, Debug)]
pub struct StreamLimits {
    /// Entries read, and orders committed, at a time.
    pub batch: usize,
    /// Entries that may wait in each stream; one more purchase is refused as [`crate::error::Error::Overloaded`].
    pub backlog: usize,
    /// How long a consumer of another kind may keep an entry before it is taken over.
    pub min_idle: Duration,
    /// Longest time one database step may take.
    pub timeout: Duration,
    /// Longest time one Redis command may take.
    pub redis_timeout: Duration,
}

/// This process as a member of one shard's stream.
pub struct StreamNode {
    pub(super) nodes: Redis,
    pub(super) redis: RoutedConnection,
    pub(super) keys: Arc<ShardKeys>,
    pub(super) store: OrderStore,
    pub(super) ids: Arc<IdGenerator>,
    pub(super) limits: StreamLimits,
    pub(super) committer: BatchCommitter,
    /// This process's consumer name in the group.
    pub(super) consumer: String,
    /// What the admission script leaves to it.
    pub(super) deliveries: Arc<Deliveries>,
    /// What the consumer holds of it.
    pub(super) held: Arc<HeldCalls>,
    /// For how long what was delivered to us is ours.
    pub(super) lease: Lease,
    pub(super) unconfirmed: Arc<UnconfirmedOrders>,
    pub(super) rebuilds: Rebuilds,
    pub(super) admissions: AdmissionBatcher,
    pub(super) entry_index: EntryIndex,
    pub(super) stats: Arc<StreamStats>,
    /// The epoch that this node knows.
    epoch: Mutex<Arc<str>>,
    /// Entries may be pending under our name: the consumer is to read those too.
    own_pending: AtomicBool,
    /// Maintenance is to run now.
    pub(super) maintenance_due: Notify,
    pub(super) tasks: TaskTracker,
    pub(super) stop: CancellationToken,
}

impl StreamNode {
    /// The member, and what the admission script will deliver to its consumer.
    pub(super) fn new(
        nodes: Redis,
        redis: RoutedConnection,
        keys: Arc<ShardKeys>,
        store: OrderStore,
        ids: Arc<IdGenerator>,
        limits: StreamLimits,
    ) -> (Self, UnboundedReceiver<Delivery>) {
        let consumer = format!("{CONSUMER_PREFIX}{}", uuid::Uuid::new_v4());
        let (deliveries, delivered) = Deliveries::new();
        let deliveries = Arc::new(deliveries);
        let unconfirmed = Arc::new(UnconfirmedOrders::default());
        let stats = Arc::new(StreamStats::default());
        let script = AdmissionScript {
            redis: redis.clone(),
            keys: keys.clone(),
            backlog: limits.backlog,
            consumer: consumer.as_str().into(),
            deliveries: deliveries.clone(),
            unconfirmed: unconfirmed.clone(),
            stats: stats.clone(),
            last_entry: Arc::default(),
        };
        let node = StreamNode {
            admissions: script.batcher(),
            committer: BatchCommitter::new(store.clone(), limits.timeout),
            entry_index: EntryIndex::new(redis.clone(), keys.clone(), limits.backlog),
            nodes,
            redis,
            keys,
            store,
            ids,
            limits,
            consumer,
            deliveries,
            held: Arc::default(),
            lease: Lease::default(),
            unconfirmed,
            rebuilds: Rebuilds::default(),
            stats,
            epoch: Mutex::new("".into()),
            own_pending: AtomicBool::new(false),
            maintenance_due: Notify::new(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        };
        (node, delivered)
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Sleeps, or less if the process is to stop.
    pub(super) async fn sleep(&self, time: Duration) {
        // `None` when stopped, which callers check themselves.
        self.stop.run_until_cancelled(tokio::time::sleep(time)).await.unwrap_or_default();
    }

    /// Takes note of the epoch. In a new one the id counter may have started over: then all nodes lease
    /// from the new counter, for an entry's id cannot be replaced when another node has used it.
    pub(super) fn enter_epoch(&self, epoch: &str) {
        let mut known = self.epoch.lock();
        if **known != *epoch {
            *known = epoch.into();
            self.lease.end();
            self.ids.abandon_lease();
        }
    }

    /// The epoch that this node knows: the run of the Redis server, a colon, and the time. An id that is drawn afterwards was
    /// leased in it, or in a later one.
    pub(super) fn epoch(&self) -> Arc<str> {
        self.epoch.lock().clone()
    }

    /// Has the consumer read the entries that are pending under our name.
    pub(super) fn read_own_pending_soon(&self) {
        self.own_pending.store(true, Ordering::SeqCst);
    }

    /// Whether that was asked for since the last call.
    pub(super) fn take_own_pending(&self) -> bool {
        self.own_pending.swap(false, Ordering::SeqCst)
    }
}
