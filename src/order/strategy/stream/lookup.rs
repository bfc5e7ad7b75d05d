//! Looks an order up for its buyer: in the database, and in Redis while it is pending or after it was refused.

use redis::AsyncCommands;

use super::names::status_key;
use super::node::StreamNode;
use super::order_status::{AdmittedStatus, parse, refusal};
use super::service::OrderStream;
use crate::error::Error;
use crate::order::model::{Buyer, Order};

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
        if let Some(order) = committed().await? {
            return Ok(Some(order));
        }
        let status: Option<String> =
            redis.clone().hget(status_key(user_id), order_id.to_string()).await?;
        match status.as_deref().and_then(parse) {
            Some(AdmittedStatus::Pending { .. }) => Ok(None),
            Some(AdmittedStatus::Refused { code }) => Err(refusal(code)),
            // It may have been committed between the two reads.
            None => committed().await?.ok_or(Error::OrderNotFound).map(Some),
        }
    }
}

impl StreamNode {
    /// The order, pending or committed, for which a user has a claim on a sale.
    pub(super) async fn claimed_order(&self, buyer: Buyer) -> Result<Option<i64>, Error> {
        let statuses: Vec<(String, String)> =
            self.redis.clone().hgetall(status_key(buyer.user_id)).await?;
        let voucher = buyer.voucher_id.to_string();
        let pending = |(id, text): &(String, String)| match parse(text) {
            Some(AdmittedStatus::Pending { voucher: of }) if of == voucher => id.parse().ok(),
            _ => None,
        };
        if let Some(id) = statuses.iter().find_map(pending) {
            return Ok(Some(id));
        }
        Ok(self.store.buyer_status(buyer).await?.and_then(|status| status.order_id))
    }
}
