//! Read the stock, then decrement it. Between the two, other purchases read the same stock: more is sold than
//! there was, and the stock falls below zero. Unsafe on purpose.

use super::{Buyer, Deadline, Error, PurchaseContext, Sale};

/// Buys; see the module.
pub async fn buy(
    context: &PurchaseContext,
    buyer: Buyer,
    sale: &Sale,
    deadline: Deadline,
) -> Result<i64, Error> {
    context.check_buyer(buyer).await?;
    let order = context.new_order(buyer, sale, deadline).await?;
    let mut transaction = context.store.begin_until(deadline).await?;
    transaction.insert(&order).await?;
    transaction.decrement(buyer.voucher_id).await?;
    transaction.commit(&order).await?;
    Ok(order.id)
}
