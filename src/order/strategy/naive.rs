//! Read the stock, then decrement it. Between the two, other purchases read the same stock: more is sold than
//! there was, and the stock falls below zero. Unsafe on purpose.

use super::{Error, Purchase};
use crate::order::store::Text;

/// Buys; see the module.
pub async fn buy(purchase: Purchase<'_>) -> Result<i64, Error> {
    purchase.check_buyer().await?;
    let order = purchase.new_order().await?;
    let mut transaction = purchase.begin().await?;
    transaction.insert(&order).await?;
    transaction.decrement(purchase.buyer.voucher_id).await?;
    transaction.place(&order, Text::default()).await
}
