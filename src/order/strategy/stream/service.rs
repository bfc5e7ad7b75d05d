//! [`OrderStream`]: starts and stops this process's part of the stream, and is the handle to it.

use std::sync::Arc;

use redis::Client;
use redis::aio::ConnectionManager;

use super::node::StreamNode;
use super::stats::StreamStats;
use crate::error::Error;
use crate::id::IdGenerator;
use crate::order::store::OrderStore;

pub use super::node::StreamLimits;

/// The stream of this process. Cheap to clone.
#[derive(Clone)]
pub struct OrderStream(pub(super) Arc<StreamNode>);

impl OrderStream {
    /// Joins the group and consumes, until [`OrderStream::shutdown`].
    ///
    /// # Errors
    /// Where Redis or the database cannot be asked for the first round of maintenance.
    pub async fn start(
        client: Client,
        redis: ConnectionManager,
        store: OrderStore,
        ids: Arc<IdGenerator>,
        limits: StreamLimits,
    ) -> Result<Self, Error> {
        let node = Arc::new(StreamNode::new(client, redis, store, ids, limits));
        // Before the first sale is published: a stock counter that is set before the epoch counts as lost.
        node.maintain_once().await?;
        node.tasks.spawn(node.clone().maintain());
        node.tasks.spawn(node.clone().consume());
        Ok(OrderStream(node))
    }

    /// Counters of this process, and the length of the stream.
    pub fn stats(&self) -> &StreamStats {
        &self.0.stats
    }

    /// Finishes the batch in flight and leaves the group. Entries that were not read are left to other nodes. To be
    /// called when no purchase can come in any more.
    pub async fn shutdown(&self) {
        self.0.stop.cancel();
        self.0.tasks.close();
        self.0.tasks.wait().await;
        self.0.admissions.shutdown().await;
    }
}
