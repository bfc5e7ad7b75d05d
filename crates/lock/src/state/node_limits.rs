//! How many background commands may be under way to one node at once: an outage is not followed by a
//! stampede, and a node that hangs delays nothing on the others of its cluster.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use redis_link::Address;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The permits of each node that is talked to, or waited for; `None` stands for a single server.
pub(crate) struct NodeLimits {
    at_once: usize,
    nodes: Mutex<HashMap<Option<Address>, Arc<Semaphore>>>,
}

impl NodeLimits {
    pub(crate) fn new(at_once: usize) -> Self {
        Self {
            at_once,
            nodes: Mutex::default(),
        }
    }

    /// Wait, behind earlier calls, for permission to send to this node; it lasts until the permit is
    /// dropped.
    pub(crate) async fn permit(&self, node: Option<Address>) -> Option<OwnedSemaphorePermit> {
        let permits = {
            let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
            // Each permit has a reference, and so has each call that waits for one.
            nodes.retain(|_, permits| Arc::strong_count(permits) > 1);
            let permits = nodes
                .entry(node)
                .or_insert_with(|| Arc::new(Semaphore::new(self.at_once)));
            permits.clone()
        };
        // The semaphore is never closed, so there always is one in the end.
        permits.acquire_owned().await.ok()
    }
}
