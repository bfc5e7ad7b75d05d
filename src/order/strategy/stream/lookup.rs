//! Looks an order up for its buyer: in the database, and in Redis while it is pending or after it was refused.

use redis::AsyncCommands;

use super::entry_index::Lookup;
use super::names::status_key;
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
        let StreamNode { store, redis, .. } = &*self.0;
        let committed = async || {
            let order = store.find(order_id).await?;
            Ok::<_, Error>(order.filter(|order| order.user_id == user_id))
        };
        let status = async || {
            redis
                .clone()
                .hget::<_, _, Option<String>>(status_key(user_id), order_id.to_string())
                .await
        };
        if let Some(order) = committed().await? {
            return Ok(Some(order));
        }
        let mut text = status().await?;
        if text.is_none() {
            // A Java node's script writes none.
            if self.is_in_stream(user_id, order_id).await? {
                return Ok(None);
            }
            // The entry may have been refused since, or committed.
            text = status().await?;
        }
        match text.as_deref().and_then(parse) {
            Some(AdmittedStatus::Pending { .. }) => Ok(None),
            Some(AdmittedStatus::Refused { code }) => Err(refusal(code)),
            None => committed().await?.ok_or(Error::OrderNotFound).map(Some),
        }
    }

    async fn is_in_stream(&self, user_id: i64, order_id: i64) -> Result<bool, Error> {
        let node = &self.0;
        let found =
            node.entry_index.find(&node.epoch(), |entries| entries.of_order(order_id)).await?;
        Ok(matches!(found, Lookup::Found(order) if order.buyer.user_id == user_id))
    }
}
