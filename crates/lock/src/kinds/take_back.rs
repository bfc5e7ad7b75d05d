//! Takes servers of a held majority lock back that have lost its key, or did not grant it at first: a
//! rolling restart of all servers does not lose the lock.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{sleep, timeout};

use crate::kinds::quorum::{Quorum, Status};
use crate::kinds::reentrant::ReentrantLock;
use crate::owner::Owner;

/// What is needed to acquire the lock of a member anew.
pub(crate) struct TakeBack {
    pub(crate) quorum: Arc<Quorum>,
    pub(crate) members: Arc<[ReentrantLock]>,
    pub(crate) owner: Owner,
    /// The time between two tries of a member, and for its answer.
    pub(crate) interval: Duration,
}

impl TakeBack {
    /// Try the members that are not held: when one is lost, and at each interval. Ends when the
    /// whole is lost or released.
    ///
    /// A try succeeds only where the key is absent, or is the owner's. What a server grants after the
    /// end of the whole is released.
    pub(crate) async fn run(self) {
        let mut changed = Box::pin(self.quorum.changed());
        while matches!(self.quorum.status(), Status::Held(_)) {
            let incomplete = !self.quorum.missing(self.members.len()).is_empty();
            tokio::select! {
                () = &mut changed => {}
                () = sleep(self.interval), if incomplete => {}
            }
            // Made before the tries, so that a loss meanwhile is not overlooked.
            changed = Box::pin(self.quorum.changed());
            self.acquire(&self.quorum.missing(self.members.len())).await;
        }
    }

    /// Try these members once.
    async fn acquire(&self, members: &[usize]) {
        let mut tries: FuturesUnordered<_> = members
            .iter()
            .map(async |&member| {
                let answer = self.members[member].try_acquire_as(&self.owner);
                (member, timeout(self.interval, answer).await)
            })
            .collect();
        while let Some((member, answer)) = tries.next().await {
            let lock = &self.members[member];
            match answer {
                Ok(Ok(Some(guard))) => {
                    let held = self.quorum.add(member, guard);
                    tracing::debug!(
                        ?lock,
                        index = member,
                        count = held,
                        "acquired anew on a server"
                    );
                }
                Ok(Ok(None)) => {
                    tracing::debug!(?lock, index = member, "another owner has the vote")
                }
                Ok(Err(error)) => {
                    tracing::debug!(?lock, index = member, %error, "cannot acquire anew")
                }
                Err(_) => {
                    tracing::debug!(?lock, index = member, "no answer; undone in the background")
                }
            }
        }
    }
}
