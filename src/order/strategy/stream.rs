//! A script in Redis admits, and a consumer group commits: the buyer holds a place at once and looks the
//! order up by its id. The fastest answer, and the only one that comes before the commit, so it says
//! *pending*. The database's conditional decrement and unique index have the last word all the same: a
//! gate that lets in too many makes refusals, never an oversell.

use crate::error::Error;
use crate::order::model::Buyer;
use crate::order::purchase::Tools;
use crate::order::steps;
use crate::request::trace;
use crate::voucher::sales::Sale;

/// Takes a place; how is told in [`crate::order::stream`].
pub async fn buy(tools: &Tools, buyer: Buyer, sale: &Sale) -> Result<i64, Error> {
    trace::step(tools.stream.order(buyer, sale), steps::admitted).await
}
