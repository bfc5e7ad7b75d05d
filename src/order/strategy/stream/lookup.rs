//! Looks an order up for its buyer: in the database, and in Redis while it is pending or after it was refused.

use redis::AsyncCommands;

use super::entry_index::{Entries, Lookup};
use super::node::StreamNode;
use super::order_status::{AdmittedStatus, parse, refusal};
use super::service::OrderStream;
use crate::error::Error;
use crate::order::model::Order;

impl OrderStream {
    /// One of the user's own orders, on whatever strategy it was bought; `None` while it is admitted, and neither committed
    /// nor refused yet.
    ///
    /// # Errors
    /// The refusal where the order was refused; [`Error::OrderNotFound`]; [`Error::Unavailable`].
    pub async fn find(&self, user_id: i64, order_id: i64) -> Result<Option<Order>, Error> {
        let committed = async || {
            let order = self.store.find(order_id).await?;
            Ok::<_, Error>(order.filter(|order| order.user_id == user_id))
        };
        if let Some(order) = committed().await? {
            return Ok(Some(order));
        }
        let Some(node) = self.of_order(order_id) else { return Err(Error::OrderNotFound) };
        let status = async || {
            let statuses = node.keys.statuses(user_id);
            let mut redis = node.redis.clone();
            redis.hget::<_, _, Option<String>>(statuses, order_id.to_string()).await
        };
        let mut text = status().await?;
        if text.is_none() {
            // A Java node's script writes none.
            if node.is_in_stream(user_id, order_id).await? {
                return Ok(None);
            }
            // The entry may have been refused since, or committed.
            text = status().await?;
        }
        match text.as_deref().and_then(parse) {
            Some(AdmittedStatus::Pending { .. }) => Ok(None),
            Some(AdmittedStatus::Refused { code }) => Err(refusal(code)),
            // Known nowhere: that it does not exist, only the primary can say.
            None => {
                let order = self.store.find_on_primary(order_id).await?;
                let own = order.filter(|order| order.user_id == user_id);
                own.ok_or(Error::OrderNotFound).map(Some)
            }
        }
    }
}

impl StreamNode {
    async fn is_in_stream(&self, user_id: i64, order_id: i64) -> Result<bool, Error> {
        let of_order = |entries: &Entries| entries.of_order(order_id);
        let found = self.entry_index.find(&self.epoch(), of_order).await?;
        Ok(matches!(found, Lookup::Found(order) if order.buyer.user_id == user_id))
    }
}
