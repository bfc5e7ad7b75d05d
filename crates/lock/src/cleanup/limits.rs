//! How many clean-ups may talk to one node at once: an outage is not followed by a stampede, and a node
//! that hangs delays no clean-up on the others of its cluster.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::connection::address::Address;

/// How many clean-ups may talk to one node at once.
const CONCURRENT: usize = 64;

/// The permits of each node to which clean-ups talk, or wait to; `None` stands for a single server.
#[derive(Default)]
pub(crate) struct CleanupLimits {
    nodes: Mutex<HashMap<Option<Address>, Arc<Semaphore>>>,
}

impl CleanupLimits {
    /// Wait until a clean-up may talk to this node; it may until the permit is dropped.
    pub(crate) async fn permit(&self, node: Option<Address>) -> Option<OwnedSemaphorePermit> {
        let permits = {
            let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
            // A permit, and who waits for one, has a reference.
            nodes.retain(|_, permits| Arc::strong_count(permits) > 1);
            let permits = nodes.entry(node).or_insert_with(|| Arc::new(Semaphore::new(CONCURRENT)));
            permits.clone()
        };
        // The semaphore is never closed, so there always is one in the end.
        permits.acquire_owned().await.ok()
    }
}
