//! Per-user lock inside the process around [`conditional`]. One node lets a user order once. With two
//! nodes there are two locks, and each lets one of the user's requests through. Unsafe on purpose.

use super::{Buyer, Error, PurchaseContext, Sale, conditional};
use crate::order::steps;
use crate::request::trace;

/// Buys; see the module.
pub async fn buy(context: &PurchaseContext, buyer: Buyer, sale: &Sale) -> Result<i64, Error> {
    context.check_buyer(buyer).await?;
    let order = context.new_order(buyer, sale).await?;
    let lock = context.process_locks.acquire(buyer.user_id.cast_unsigned());
    let guard = trace::step(lock, steps::locked_in_memory).await;
    let outcome = conditional::place_order(context, &order).await;
    drop(guard);
    steps::unlocked_in_memory();
    outcome
}
