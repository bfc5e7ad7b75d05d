//! A per-user lock inside the transaction: acquired after it was begun, released before it commits. This is what
//! `synchronized` in the body of a `@Transactional` method does, as the proxy around that method begins and commits.
//! Between the release and the commit the user's next request gets the lock, sees no order yet, and writes a second one,
//! on one node as on two. [`super::process_lock`] has the same lock in the right place. Unsafe on purpose.

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
    let user_id = buyer.user_id.cast_unsigned();
    let order = context.new_order(buyer, sale, deadline).await?;
    let mut transaction = context.store.begin_until(deadline).await?;
    let lock = trace::step(context.process_locks.acquire(user_id), steps::locked_in_memory);
    let guard = until(deadline, lock).await?;
    let inserted = transaction.insert_if_first(&order).await;
    drop(guard);
    steps::unlocked_in_memory();
    conditional::end(transaction, &order, inserted?).await
}
