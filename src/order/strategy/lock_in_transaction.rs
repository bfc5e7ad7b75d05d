//! A per-user lock inside the transaction: acquired after it was begun, released before it commits. This is what
//! `synchronized` in the body of a `@Transactional` method does, as the proxy around that method begins and commits.
//! Between the release and the commit the user's next request gets the lock, sees no order yet, and writes a second one,
//! on one node as on two. [`super::process_lock`] has the same lock in the right place. Unsafe on purpose.

use super::{Error, Purchase, conditional};
use crate::request::trace;

/// Buys; see the module.
pub async fn buy(purchase: Purchase<'_>) -> Result<i64, Error> {
    let order = purchase.new_order().await?;
    let mut transaction = purchase.begin().await?;
    let guard = purchase.lock_in_process().await?;
    let inserted = transaction.insert_if_first(&order).await;
    drop(guard);
    trace::mark("unlocked", "place=memory");
    conditional::finish(transaction, &order, inserted?).await
}
