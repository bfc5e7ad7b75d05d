//! Compare and set: read the stock as late as possible, and decrement it only where it is still what was read. Never
//! oversells; but of a hundred buyers who read the same stock one succeeds and ninety-nine are refused
//! though there is enough for all. And it guards the stock, not the buyer: between the check of the
//! buyer's orders and the read of the stock another request of theirs can commit. Unsafe on purpose.

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
    let stock = transaction.stock(buyer.voucher_id).await?.unwrap_or(0);
    if stock < 1 {
        transaction.rollback().await?;
        return Err(Error::SoldOut);
    }
    if !transaction.decrement_if_stock_is(buyer.voucher_id, stock).await? {
        transaction.rollback().await?;
        return Err(Error::StockChanged);
    }
    transaction.commit(&order).await?;
    Ok(order.id)
}
