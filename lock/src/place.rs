//! A waiter's place in the queue of a fair lock, seen from here: as long as one exists, the owner
//! wants to be in the queue; when the last one is dropped, the janitor takes it out.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;

use super::claim::Claim;
use super::locks::Shared;
use super::registry::EntryRef;
use super::settle::leave;

/// One call that waits in the queue, from before it was added until it is in or gone.
pub(super) struct Place {
    shared: Arc<Shared>,
    claim: Claim,
    entry: EntryRef,
}

impl Place {
    pub(super) fn new(shared: &Arc<Shared>, claim: &Claim) -> Self {
        let entry = shared.registry.enter(claim);
        entry.queued.fetch_add(1, Ordering::Relaxed);
        Self { shared: shared.clone(), claim: claim.clone(), entry }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Whoever got in has left the queue by that.
        if self.entry.queued.fetch_sub(1, Ordering::Relaxed) > 1 || self.entry.live().is_some() {
            return;
        }
        let until = Instant::now() + self.shared.config.lease;
        let job = leave(self.shared.clone(), self.claim.clone(), until);
        self.shared.janitor.run(job);
    }
}
