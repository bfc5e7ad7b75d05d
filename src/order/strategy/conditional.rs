//! Decrement where there is stock left: the database checks and changes in one statement, so it never
//! oversells and never refuses without need. It still lets one user order twice, when two requests
//! both look before either commits. Unsafe on purpose by itself; [`place`] is what the lock rungs
//! run under their lock.

use crate::error::Error;
use crate::order::model::{Buyer, NewOrder};
use crate::order::purchase::Tools;
use crate::order::store::Placed;
use crate::voucher::sales::Sale;

/// Buys; see the module's prose.
pub async fn buy(tools: &Tools, buyer: Buyer, sale: &Sale) -> Result<i64, Error> {
    tools.look(buyer).await?;
    let order = tools.new_order(buyer, sale).await?;
    place(tools, &order).await
}

/// Checks the buyer, inserts, decrements and commits, in one transaction. Safe for one buyer at a
/// time; callers see to that with a lock.
pub async fn place(tools: &Tools, order: &NewOrder) -> Result<i64, Error> {
    let (ledger, placed) = tools.store.begin_placed(order).await?;
    let refusal = match placed {
        Placed::Taken => None,
        Placed::OrderedBefore => Some(Error::AlreadyOrdered(None)),
        Placed::NothingLeft => Some(Error::SoldOut),
    };
    if let Some(refusal) = refusal {
        ledger.rollback().await?;
        return Err(refusal);
    }
    tools.store.commit(ledger, order.id).await?;
    Ok(order.id)
}
