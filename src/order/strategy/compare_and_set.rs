//! Read the stock as late as possible, and decrement it only where it is still what was read. Never
//! oversells; but of a hundred buyers who read the same stock one succeeds and ninety-nine are refused
//! though there is enough for all. And it guards the stock, not the buyer: between the look at the
//! buyer's orders and the read of the stock another request of theirs can commit. Unsafe on purpose.

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
    let seen = ledger.stock(buyer.voucher_id).await?.unwrap_or(0);
    if seen < 1 {
        ledger.rollback().await?;
        return Err(Error::SoldOut);
    }
    if !ledger.decrement_if_stock_is(buyer.voucher_id, seen).await? {
        ledger.rollback().await?;
        return Err(Error::StockChanged);
    }
    tools.store.commit(ledger, order.id).await?;
    Ok(order.id)
}
