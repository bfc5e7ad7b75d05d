//! [`conditional`] under a per-user lock inside the process. One node lets a user order once. With two
//! nodes there are two locks, and each lets one of the user's requests through. Unsafe on purpose.

use super::conditional;
use crate::error::Error;
use crate::order::model::Buyer;
use crate::order::purchase::Tools;
use crate::order::steps;
use crate::request::trace;
use crate::voucher::sales::Sale;

/// Buys; see the module's prose.
pub async fn buy(tools: &Tools, buyer: Buyer, sale: &Sale) -> Result<i64, Error> {
    tools.look(buyer).await?;
    let order = tools.new_order(buyer, sale).await?;
    let lock = tools.process_locks.acquire(buyer.user_id.cast_unsigned());
    let held = trace::step(lock, steps::locked_in_memory).await;
    let outcome = conditional::place(tools, &order).await;
    drop(held);
    steps::unlocked_in_memory();
    outcome
}
