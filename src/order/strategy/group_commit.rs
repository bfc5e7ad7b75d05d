//! Purchases that arrive while a commit runs share the next one: many orders, one transaction, one
//! wait for the disk. Safe on any number of nodes without any lock: the database's unique index drops
//! second orders, and the stock falls once, by the number really inserted, where it suffices. Each
//! buyer is answered after the commit all the same.

use crate::error::Error;
use crate::order::model::Buyer;
use crate::order::purchase::Tools;
use crate::order::steps;
use crate::request::trace;
use crate::voucher::sales::Sale;

/// Buys; how is told in [`crate::order::group`].
pub async fn buy(tools: &Tools, buyer: Buyer, sale: &Sale) -> Result<i64, Error> {
    trace::step(tools.groups.order(buyer, sale), steps::batch_committed).await
}
