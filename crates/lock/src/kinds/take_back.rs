//! Takes servers of a held majority lock back that have lost its key, or did not grant it at first: a
//! rolling restart of all servers does not lose the lock.

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{sleep, timeout};

use crate::config::LockConfig;
use crate::kinds::quorum::{Quorum, Status};
use crate::kinds::several::Members;
use crate::owner::Owner;

impl Members {
    /// Try the members that are not held: when one is lost, and every third of the lease, which is also
    /// the time for an answer. Ends when the whole is lost or released.
    ///
    /// A try succeeds only where the key is absent, or is the owner's. What a server grants after the
    /// end of the whole is released.
    pub(super) async fn take_back(self, quorum: Arc<Quorum>, owner: Owner) {
        let interval = LockConfig::renewal_interval(self.lease);
        let missing = || quorum.missing(self.locks.len());
        let mut changed = Box::pin(quorum.changed());
        while matches!(quorum.status(), Status::Held(_)) {
            let incomplete = !missing().is_empty();
            tokio::select! {
                () = &mut changed => {}
                () = sleep(interval), if incomplete => {}
            }
            // Made before the tries, so that a loss meanwhile is not overlooked.
            changed = Box::pin(quorum.changed());
            let mut tries: FuturesUnordered<_> = missing()
                .into_iter()
                .map(async |member| {
                    let answer = self.locks[member].try_acquire_as(&owner);
                    (member, timeout(interval, answer).await)
                })
                .collect();
            while let Some((member, answer)) = tries.next().await {
                let lock = &self.locks[member];
                tracing::debug!(?lock, index = member, ?answer, "tried to acquire anew");
                if let Ok(Ok(Some(guard))) = answer {
                    quorum.add(member, guard);
                }
            }
        }
    }
}
