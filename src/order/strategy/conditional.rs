//! Conditional decrement: take one where there is stock left. The database checks and changes in one statement, so it
//! never oversells and never refuses without need. It still lets one user order twice, when two requests
//! both check before either commits. Unsafe on purpose by itself; [`place_order`] is what the lock strategies
//! run under their lock.

use super::{Error, Purchase};
use crate::order::model::NewOrder;
use crate::order::store::{OrderTransaction, Text};

/// Buys; see the module.
pub async fn buy(purchase: Purchase<'_>) -> Result<i64, Error> {
    purchase.check_buyer().await?;
    let order = purchase.new_order().await?;
    place_order(purchase, &order).await
}

/// Checks the buyer, inserts, decrements and commits, in one round trip. Safe only if a buyer has one call at a time; callers
/// ensure that with a lock. Strategies that are unsafe on purpose take two round trips: in one, their mistake would hardly be
/// seen.
pub async fn place_order(purchase: Purchase<'_>, order: &NewOrder) -> Result<i64, Error> {
    let mut transaction = purchase.begin().await?;
    if purchase.sale.strategy.is_unsafe() {
        let is_inserted = transaction.insert_if_first(order).await?;
        return finish(transaction, order, is_inserted).await;
    }
    let text = Text::default().insert_if_first(order).take([order]);
    transaction.place(order, text).await
}

/// Decrements and commits if the order is inserted; rolls back if its buyer had an order already.
pub async fn finish(
    transaction: OrderTransaction,
    order: &NewOrder,
    is_inserted: bool,
) -> Result<i64, Error> {
    if !is_inserted {
        transaction.rollback().await?;
        return Err(Error::AlreadyOrdered(None));
    }
    transaction
        .place(order, Text::default().take([order]))
        .await
}
