//! Read the stock, then decrement it. Between the two, others read the same stock: more is sold than
//! there was, and the stock falls below zero. Unsafe on purpose.

use crate::error::Error;
use crate::order::model::Buyer;
use crate::order::purchase::Tools;
use crate::voucher::sales::Sale;

/// Buys; see the module's prose.
pub async fn buy(tools: &Tools, buyer: Buyer, sale: &Sale) -> Result<i64, Error> {
    tools.look(buyer).await?;
    let order = tools.new_order(buyer, sale).await?;
    let mut ledger = tools.store.begin().await?;
    ledger.insert(&order).await?;
    ledger.decrement(buyer.voucher_id).await?;
    tools.store.commit(ledger, order.id).await?;
    Ok(order.id)
}
