//! Conditional decrement: take one where there is stock left. The database checks and changes in one statement, so it
//! never oversells and never refuses without need. It still lets one user order twice, when two requests
//! both check before either commits. Unsafe on purpose by itself; [`place_order`] is what the lock strategies
//! run under their lock.

use super::{Buyer, Error, PurchaseContext, Sale};
use crate::order::model::{NewOrder, Placement};
use crate::order::store::OrderTransaction;

/// Buys; see the module.
pub async fn buy(context: &PurchaseContext, buyer: Buyer, sale: &Sale) -> Result<i64, Error> {
    context.check_buyer(buyer).await?;
    let order = context.new_order(buyer, sale).await?;
    place_order(context, &order).await
}

/// Checks the buyer, inserts, decrements and commits, in one transaction. Safe for one buyer at a
/// time; callers ensure that with a lock.
pub async fn place_order(context: &PurchaseContext, order: &NewOrder) -> Result<i64, Error> {
    let mut transaction = context.store.begin().await?;
    let placement = transaction.place(order).await?;
    end(transaction, order, placement).await
}

/// Commits an order that is placed; undoes the transaction of one that is refused.
pub async fn end(
    transaction: OrderTransaction,
    order: &NewOrder,
    placement: Placement,
) -> Result<i64, Error> {
    let refusal = match placement {
        Placement::Placed => None,
        Placement::AlreadyOrdered => Some(Error::AlreadyOrdered(None)),
        Placement::SoldOut => Some(Error::SoldOut),
    };
    if let Some(refusal) = refusal {
        transaction.rollback().await?;
        return Err(refusal);
    }
    transaction.commit(order).await?;
    Ok(order.id)
}
