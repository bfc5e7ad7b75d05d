//! A waiter's membership in the queue of a fair lock. While one ticket of an owner exists, the owner
//! stays in the queue; dropping the last one removes it in the background.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;

use crate::request::LockRequest;
use crate::state::registry::Entry;
use crate::state::shared::Shared;
use crate::tasks::reconcile::release_unless_held;

/// One call that waits in the queue, from before it joins until it has acquired or given up.
pub(crate) struct FairQueueTicket {
    shared: Arc<Shared>,
    request: LockRequest,
    entry: Arc<Entry>,
}

impl FairQueueTicket {
    pub(crate) fn new(shared: &Arc<Shared>, request: &LockRequest) -> Self {
        let entry = shared.registry.enter(request);
        entry.queued.fetch_add(1, Ordering::Relaxed);
        Self {
            shared: shared.clone(),
            request: request.clone(),
            entry,
        }
    }
}

impl Drop for FairQueueTicket {
    fn drop(&mut self) {
        // An owner that has acquired the lock has thereby left the queue.
        if self.entry.queued.fetch_sub(1, Ordering::Relaxed) > 1 || self.entry.live().is_some() {
            return;
        }
        // After a lease, other waiters remove this one as dead.
        let until = Instant::now() + self.shared.config.lease;
        self.shared
            .cleanup
            .spawn(release_unless_held(&self.shared, &self.request, until));
    }
}
