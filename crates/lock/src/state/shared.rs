//! State shared by the operations, guards and background tasks of one [`Locks`].
//!
//! [`Locks`]: crate::Locks

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::config::LockConfig;
use crate::connection::command_connection::CommandConnection;
use crate::error::Error;
use crate::owner::Owner;
use crate::state::cleanup_queue::CleanupQueue;
use crate::state::node_limits::NodeLimits;
use crate::state::registry::Registry;
use crate::state::renewal_schedule::RenewalSchedule;
use crate::state::wakeups::Wakeups;
use crate::stats::Counters;

/// How many clean-ups may talk to one node at once.
const CLEANUPS_AT_ONCE: usize = 64;

/// The shared state. It does not refer to the background tasks.
pub(crate) struct Shared {
    pub(crate) config: LockConfig,
    pub(crate) connection: CommandConnection,
    pub(crate) registry: Arc<Registry>,
    pub(crate) wakeups: Arc<Wakeups>,
    pub(crate) renewals: RenewalSchedule,
    pub(crate) cleanup: CleanupQueue,
    pub(crate) counters: Counters,
    pub(crate) client_id: Uuid,
    /// Cancelled when no acquire is accepted any more.
    pub(crate) closing: CancellationToken,
    pub(crate) waiters: TaskTracker,
    /// Cancelled when the background tasks have to end.
    pub(crate) stop: CancellationToken,
    next_id: AtomicU64,
    cleanups: NodeLimits,
}

impl Shared {
    pub(crate) fn new(
        config: LockConfig,
        connection: CommandConnection,
        cleanup: CleanupQueue,
    ) -> Self {
        Self {
            registry: Arc::default(),
            wakeups: Arc::new(Wakeups::new(!config.pubsub)),
            config,
            connection,
            renewals: RenewalSchedule::default(),
            cleanup,
            counters: Counters::default(),
            client_id: Uuid::new_v4(),
            closing: CancellationToken::new(),
            waiters: TaskTracker::new(),
            stop: CancellationToken::new(),
            next_id: AtomicU64::new(1),
            cleanups: NodeLimits::new(CLEANUPS_AT_ONCE),
        }
    }

    /// An id that this process has not used yet.
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn owner(&self) -> Owner {
        Owner::new(self.client_id, self.next_id())
    }

    /// A unique token, for locks without an [`Owner`].
    pub(crate) fn token(&self) -> String {
        format!("{}-{}", self.client_id.simple(), self.next_id())
    }

    /// Refuse an owner of another [`Locks`](crate::Locks), where its holds are counted.
    pub(crate) fn check_owner(&self, owner: &Owner) -> Result<(), Error> {
        if owner.is_of(self.client_id) {
            Ok(())
        } else {
            Err(Error::ForeignOwner)
        }
    }

    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if self.closing.is_cancelled() {
            Err(Error::Closed)
        } else {
            Ok(())
        }
    }

    /// Wait for permission to send a clean-up to the node of this key; it lasts until the permit is
    /// dropped.
    pub(crate) async fn cleanup_permit(&self, key: &str) -> Option<OwnedSemaphorePermit> {
        self.cleanups
            .permit(self.connection.redis().serving(key))
            .await
    }
}
