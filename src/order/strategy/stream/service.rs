//! [`OrderStream`]: starts and stops this process's part of the streams, one of each shard, and admits purchases: draws an order id, runs the
//! admission script, and repairs what the script found missing or wrong (an old epoch, no stock counter, a claim without
//! an order, stranded stock) before it tries again.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::Instant;

use super::admission_script::Admission;
use super::claims::Claim;
use super::deliveries::Delivery;
use super::node::StreamNode;
use super::stats::StreamStats;
use crate::connection::redis::{Redis, RoutedConnection};
use crate::error::Error;
use crate::id::IdGenerator;
use crate::keys::{Keys, ShardKeys};
use crate::order::deadline::until;
use crate::order::model::{Buyer, NewOrder};
use crate::order::store::OrderStore;
use crate::voucher::sales::Sale;

pub use super::node::StreamLimits;

/// Pause before the script is sent again in a new epoch.
const PAUSE: Duration = Duration::from_millis(50);

/// The streams of this process. Cheap to clone.
#[derive(Clone)]
pub struct OrderStream {
    keys: Keys,
    /// For look-ups.
    pub(super) reads: OrderStore,
    /// By shard.
    nodes: Arc<[Arc<StreamNode>]>,
}

impl OrderStream {
    /// Joins the group of every shard's stream and consumes, until [`OrderStream::shutdown`]. Orders are looked up by
    /// `reads`; `ids` has the order ids of each shard.
    ///
    /// # Errors
    /// Where Redis or the database cannot be asked for the first round of maintenance.
    pub async fn start(
        nodes: Redis,
        redis: RoutedConnection,
        store: OrderStore,
        reads: OrderStore,
        keys: Keys,
        ids: impl Fn(&ShardKeys) -> Arc<IdGenerator>,
        limits: StreamLimits,
    ) -> Result<Self, Error> {
        let node = |shard: &Arc<ShardKeys>| {
            let (ids, shard) = (ids(shard), shard.clone());
            let (node, delivered) =
                StreamNode::new(nodes.clone(), redis.clone(), shard, store.clone(), ids, limits);
            (Arc::new(node), delivered)
        };
        let (nodes, delivered): (Vec<_>, Vec<_>) = keys.shards().iter().map(node).unzip();
        // Before the first sale is published: a stock counter that is set before the epoch counts as lost.
        try_join_all(nodes.iter().map(|node| node.maintain_once())).await?;
        for (node, delivered) in nodes.iter().zip(delivered) {
            node.spawn_tasks(delivered);
        }
        Ok(OrderStream { keys, reads, nodes: nodes.into() })
    }

    /// The member of the stream in which an order with this id may be; `None` where there is none.
    pub(super) fn of_order(&self, order_id: i64) -> Option<&Arc<StreamNode>> {
        self.nodes.get(self.keys.shard_of_order(order_id)?)
    }

    /// Admits the buyer; returns the id under which the order will be committed.
    ///
    /// # Errors
    /// Refusals; [`Error::Unavailable`] while the stock counter cannot be rebuilt; [`Error::OutcomeUnknown`] with the
    /// id where Redis went away in the middle.
    pub async fn order(&self, buyer: Buyer, sale: &Sale, deadline: Instant) -> Result<i64, Error> {
        let node = &self.nodes[self.keys.shard_of_sale(buyer.voucher_id)];
        let deadline = deadline.min(Instant::now() + node.limits.timeout);
        let mut claim_dropped = false;
        let mut drawn = Vec::with_capacity(1);
        loop {
            // Again each time: waiting for a stock counter takes a while.
            sale.window.require_open()?;
            // Of callers that have gone: they bring no permit, and the script may not answer.
            if node.admissions.waiting() >= node.limits.backlog {
                return Err(Error::Overloaded);
            }
            // The epoch first: an id that is drawn after it was leased in it, or in a later one.
            let epoch = node.epoch();
            let order =
                NewOrder { id: until(deadline, node.ids.next()).await??, buyer, unguarded: false };
            drawn.push(order.id);
            // Without an answer the batcher has ended, or a call has panicked: the script may have been run.
            let answer = node.admissions.request((order, epoch)).await;
            match answer.unwrap_or(Err(Error::OutcomeUnknown(Some(order.id))))? {
                Admission::Admitted(_) => return Ok(order.id),
                Admission::Refused(refusal) => return Err(refusal),
                Admission::Full => return Err(Error::Overloaded),
                Admission::Claimed => match node.claim(buyer).await? {
                    // A reply was lost, and meanwhile the order was committed, or Redis was restarted.
                    Claim::Order(id) if drawn.contains(&id) => return Ok(id),
                    Claim::Order(id) => return Err(Error::AlreadyOrdered(Some(id))),
                    Claim::Nothing { last_entry } => {
                        // Once: another node's script may claim and be dropped again and again.
                        if claim_dropped || !node.drop_claim(buyer, last_entry).await? {
                            return Err(Error::AlreadyOrdered(None));
                        }
                        claim_dropped = true;
                    }
                },
                Admission::SoldOut { waiting } => {
                    let stranded =
                        waiting == 0 && !sale.sold_out && node.has_stranded_stock(buyer).await?;
                    if !stranded {
                        return Err(Error::SoldOut);
                    }
                    node.distrust_stock_counter(buyer.voucher_id).await?;
                }
                Admission::OtherEpoch if Instant::now() < deadline => {
                    node.maintenance_due.notify_one();
                    tokio::time::sleep(PAUSE).await;
                }
                Admission::NoCounter if Instant::now() < deadline => {
                    node.rebuild_stock_counter(buyer.voucher_id).await?
                }
                Admission::OtherEpoch | Admission::NoCounter => {
                    return Err(Error::Unavailable("the sale's stock counter"));
                }
            }
        }
    }

    /// Counters of this process, and the lengths of the streams: the sum of all shards.
    pub fn stats(&self) -> StreamStats {
        StreamStats::sum(self.nodes.iter().map(|node| &*node.stats))
    }

    /// Finishes the batches in flight and leaves the groups. Entries that were not read are left to other nodes. To be
    /// called when no purchase can come in any more.
    pub async fn shutdown(&self) {
        // Together: a node of Redis that does not answer must not keep the others waiting.
        join_all(self.nodes.iter().map(|node| node.shutdown())).await;
    }
}

impl StreamNode {
    fn spawn_tasks(self: &Arc<Self>, delivered: UnboundedReceiver<Delivery>) {
        self.tasks.spawn(self.clone().maintain());
        self.tasks.spawn(self.clone().consume(delivered));
        self.tasks.spawn(self.clone().keep_up_sales());
        self.tasks.spawn(self.clone().find_stranded_stock());
        self.tasks.spawn(self.clone().expire_ended_sales());
        self.tasks.spawn(self.clone().watch_foreign_consumers());
    }

    async fn shutdown(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        self.admissions.shutdown().await;
    }
}
