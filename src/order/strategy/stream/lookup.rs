//! Looks an order up for its buyer: in the database, and in Redis while it is pending or after it was refused.

use redis::AsyncCommands;

use super::entry_index::{Entries, Lookup};
use super::names::EPOCH_GROUP;
use super::node::StreamNode;
use super::order_status::{AdmittedStatus, parse, refusal};
use super::service::OrderStream;
use super::stock_counter::GRACE;
use crate::error::Error;
use crate::order::model::Order;
use crate::scripts;

impl OrderStream {
    /// One of the user's own orders, on whatever strategy it was bought; `None` while it is admitted, and neither committed
    /// nor refused yet.
    ///
    /// # Errors
    /// The refusal where the order was refused; [`Error::OrderNotFound`]; [`Error::Unavailable`], also of an order whose
    /// transaction has not ended, or that Redis may have lost and that may be added again.
    pub async fn find(&self, user_id: i64, order_id: i64) -> Result<Option<Order>, Error> {
        let own = |order: Order| (order.user_id == user_id).then_some(order);
        // Another user's order says nothing of this user's entry, which may have the same id after the counter was lost.
        if let Some(order) = self.reads.find(order_id).await?.and_then(own) {
            return Ok(Some(order));
        }
        // Known nowhere: that it does not exist, only the primary can say.
        let for_certain = async |settled: bool| match self.reads.find_on_primary(order_id).await? {
            None if !settled => Err(Error::Unavailable("Redis")),
            order => order.and_then(own).ok_or(Error::OrderNotFound).map(Some),
        };
        let Some(node) = self.of_order(order_id) else { return for_certain(true).await };
        let status = async || {
            let statuses = node.keys.statuses(user_id);
            let mut redis = node.redis.clone();
            redis.hget::<_, _, Option<String>>(statuses, order_id.to_string()).await
        };
        let (mut text, mut settled) = (status().await?, true);
        if text.is_none() {
            if node.unconfirmed.contains(user_id, order_id) {
                return Ok(None);
            }
            if node.is_in_stream(user_id, order_id).await? {
                return Ok(None);
            }
            settled = node.is_settled().await?;
            // The entry may have been refused since, or committed, or added again.
            text = status().await?;
        }
        match text.as_deref().and_then(parse) {
            Some(AdmittedStatus::Pending) => return Ok(None),
            Some(AdmittedStatus::Refused { code }) => return Err(refusal(code)),
            None => {}
        }
        for_certain(settled).await
    }
}

impl StreamNode {
    /// Whether every node has added again what Redis may have lost. Until then an order that it does not know may be pending.
    async fn is_settled(&self) -> Result<bool, Error> {
        let mut settled = scripts::STREAM_SETTLED.key(&self.keys.epoch);
        settled.key(&self.keys.stream).arg(GRACE.as_millis() as u64).arg(EPOCH_GROUP);
        Ok(settled.invoke_async(&mut self.redis.clone()).await?)
    }

    async fn is_in_stream(&self, user_id: i64, order_id: i64) -> Result<bool, Error> {
        let of_order = |entries: &Entries| entries.of_order(user_id, order_id);
        Ok(matches!(self.entry_index.find(&self.epoch(), of_order).await?, Lookup::Found(_)))
    }
}
