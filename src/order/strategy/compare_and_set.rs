//! Decrement only where the stock is still what was read. Never oversells; but of a hundred buyers who
//! read the same stock one succeeds and ninety-nine are refused though there is enough for all. And
//! it says nothing of who buys: one user can order twice. Unsafe on purpose.

use crate::error::Error;
use crate::order::model::Buyer;
use crate::order::purchase::Tools;
use crate::voucher::sales::Sale;

/// Buys; see the module's prose.
pub async fn buy(tools: &Tools, buyer: Buyer, sale: &Sale) -> Result<i64, Error> {
    let seen = tools.look(buyer).await?.stock;
    let order = tools.new_order(buyer, sale).await?;
    let mut ledger = tools.store.begin().await?;
    ledger.insert(&order).await?;
    if !ledger.decrement_if_stock_is(buyer.voucher_id, seen).await? {
        ledger.rollback().await?;
        return Err(Error::StockChanged);
    }
    ledger.commit(order.id).await?;
    Ok(order.id)
}
