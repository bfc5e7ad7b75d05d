//! Lock the sale's row, then check the buyer, insert and decrement at leisure. Safe on any number of
//! nodes and needs no Redis lock; but every buyer queues on one row for the length of a whole
//! transaction.

use crate::error::Error;
use crate::order::model::Buyer;
use crate::order::purchase::Tools;
use crate::voucher::sales::Sale;

/// Buys; see the module's prose.
pub async fn buy(tools: &Tools, buyer: Buyer, sale: &Sale) -> Result<i64, Error> {
    // Drawn first: no other server is waited for while the row is locked.
    let order = tools.new_order(buyer, sale).await?;
    let mut ledger = tools.store.begin().await?;
    let standing = ledger.lock_sale(buyer).await?.ok_or(Error::VoucherNotFound)?;
    if let Err(refusal) = standing.require_chance() {
        ledger.rollback().await?;
        return Err(refusal);
    }
    ledger.insert(&order).await?;
    ledger.decrement(buyer.voucher_id).await?;
    tools.store.commit(ledger, order.id).await?;
    Ok(order.id)
}
