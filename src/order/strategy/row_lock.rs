//! Row lock: lock the sale's row first (`SELECT … FOR UPDATE`), then check the buyer, insert and decrement. Safe on
//! any number of nodes and needs no Redis lock; but every buyer queues on one row for the length of a whole
//! transaction.

use super::{Error, Purchase};
use crate::order::store::Text;

/// Buys; see the module.
pub async fn buy(purchase: Purchase<'_>) -> Result<i64, Error> {
    // The id first: no other server is waited for while the row is locked.
    let order = purchase.new_order().await?;
    let mut transaction = purchase.begin().await?;
    let status = transaction.lock_sale(purchase.buyer).await?;
    if let Err(refusal) = status.require_chance() {
        transaction.rollback().await?;
        return Err(refusal);
    }
    let text = Text::default().insert(&order).take([&order]);
    transaction.place(&order, text).await
}
