//! The claims of a sale: a set of the users who are not admitted again. A claim is respected while its order is in the
//! database, or its entry in the stream, whichever node's script made it; one with neither is dropped.

use super::entry_id::EntryId;
use super::entry_index::Lookup;
use super::node::StreamNode;
use crate::error::Error;
use crate::order::model::Buyer;
use crate::scripts;

/// Entries that the script reads at most, when it drops a claim.
const ENTRIES: u32 = 1000;

/// What a claim stands for.
pub(super) enum Claim {
    /// This order, pending or committed.
    Order(i64),
    /// Nothing, as far as entries up to this one say.
    Nothing { last_entry: EntryId },
}

impl StreamNode {
    /// What a user's claim on a sale stands for.
    pub(super) async fn claim(&self, buyer: Buyer) -> Result<Claim, Error> {
        if let Some(id) = self.ordered(buyer).await? {
            return Ok(Claim::Order(id));
        }
        let last_entry =
            match self.entry_index.find(&self.epoch(), |entries| entries.of_buyer(buyer)).await? {
                Lookup::Found(order) => return Ok(Claim::Order(order.id)),
                Lookup::Missing { last_entry } => last_entry,
            };
        // It may have been committed between the two.
        Ok(match self.ordered(buyer).await? {
            Some(id) => Claim::Order(id),
            None => Claim::Nothing { last_entry },
        })
    }

    async fn ordered(&self, buyer: Buyer) -> Result<Option<i64>, Error> {
        Ok(self.store.buyer_status(buyer).await?.and_then(|status| status.order_id))
    }

    /// Drops a claim that stands for nothing, unless it does by an entry after `last_entry`; says whether it is gone.
    pub(super) async fn drop_claim(
        &self,
        buyer: Buyer,
        last_entry: EntryId,
    ) -> Result<bool, Error> {
        let Buyer { user_id, voucher_id } = buyer;
        let mut drop = scripts::STREAM_DROP_CLAIM.key(&self.keys.stream);
        drop.key(self.keys.claims(voucher_id))
            .arg(user_id)
            .arg(voucher_id)
            .arg(last_entry)
            .arg(ENTRIES);
        let dropped: i64 = drop.invoke_async(&mut self.redis.clone()).await?;
        if dropped == 1 {
            tracing::warn!(user_id, voucher_id, "a claim without an order is dropped");
        }
        Ok(dropped == 1)
    }
}
