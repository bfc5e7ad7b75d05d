//! Compare and set: read the stock as late as possible, and decrement it only where it is still what was read. Never
//! oversells; but of a hundred buyers who read the same stock one succeeds and ninety-nine are refused
//! though there is enough for all. And it guards the stock, not the buyer: between the check of the
//! buyer's orders and the read of the stock another request of theirs can commit. Unsafe on purpose.

use super::{Error, Purchase};
use crate::order::store::Text;

/// Buys; see the module.
pub async fn buy(purchase: Purchase<'_>) -> Result<i64, Error> {
    purchase.check_buyer().await?;
    let order = purchase.new_order().await?;
    let mut transaction = purchase.begin().await?;
    transaction.insert(&order).await?;
    let stock = transaction
        .stock(purchase.buyer.voucher_id)
        .await?
        .unwrap_or(0);
    if stock < 1 {
        transaction.rollback().await?;
        return Err(Error::SoldOut);
    }
    if !transaction
        .decrement_if_stock_is(purchase.buyer.voucher_id, stock)
        .await?
    {
        transaction.rollback().await?;
        return Err(Error::StockChanged);
    }
    transaction.place(&order, Text::default()).await
}
