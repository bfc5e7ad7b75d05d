//! A per-user lock inside the transaction: acquired after it was begun, released before it commits. This is what
//! `synchronized` in the body of a `@Transactional` method does, as the proxy around that method begins and commits.
//! Between the release and the commit the user's next request gets the lock, sees no order yet, and writes a second one,
//! on one node as on two. [`super::process_lock`] has the same lock in the right place. Unsafe on purpose.

use super::{Buyer, Error, PurchaseContext, Sale, conditional};
use crate::order::steps;
use crate::request::trace;

/// Buys; see the module.
pub async fn buy(context: &PurchaseContext, buyer: Buyer, sale: &Sale) -> Result<i64, Error> {
    let order = context.new_order(buyer, sale).await?;
    let mut transaction = context.store.begin().await?;
    let lock = context.process_locks.acquire(buyer.user_id.cast_unsigned());
    let guard = trace::step(lock, steps::locked_in_memory).await;
    let inserted = transaction.insert_if_first(&order).await;
    drop(guard);
    steps::unlocked_in_memory();
    conditional::end(transaction, &order, inserted?).await
}
