//! Row lock: lock the sale's row first (`SELECT … FOR UPDATE`), then check the buyer, insert and decrement. Safe on
//! any number of nodes and needs no Redis lock; but every buyer queues on one row for the length of a whole
//! transaction.

use super::{Buyer, Deadline, Error, PurchaseContext, Sale, conditional};

/// Buys; see the module.
pub async fn buy(
    context: &PurchaseContext,
    buyer: Buyer,
    sale: &Sale,
    deadline: Deadline,
) -> Result<i64, Error> {
    // The id first: no other server is waited for while the row is locked.
    let order = context.new_order(buyer, sale, deadline).await?;
    let mut transaction = context.store.begin_until(deadline).await?;
    let status = transaction.lock_sale(buyer).await?;
    if let Err(refusal) = status.require_chance() {
        transaction.rollback().await?;
        return Err(refusal);
    }
    transaction.insert(&order).await?;
    conditional::end(transaction, &order, true).await
}
