//! Per-user lock inside the process around [`conditional`]. One node lets a user order once. With two
//! nodes there are two locks, and each lets one of the user's requests through. Unsafe on purpose.

use super::{Buyer, Deadline, Error, PurchaseContext, Sale, conditional};
use crate::order::deadline::until;
use crate::order::steps;
use crate::request::trace;

/// Buys; see the module.
pub async fn buy(
    context: &PurchaseContext,
    buyer: Buyer,
    sale: &Sale,
    deadline: Deadline,
) -> Result<i64, Error> {
    context.check_buyer(buyer).await?;
    let user_id = buyer.user_id.cast_unsigned();
    let order = context.new_order(buyer, sale, deadline).await?;
    let lock = trace::step(context.process_locks.acquire(user_id), steps::locked_in_memory);
    let guard = until(deadline, lock).await?;
    let outcome = conditional::place_order(context, &order, deadline).await;
    drop(guard);
    steps::unlocked_in_memory();
    outcome
}
