//! Conditional decrement: take one where there is stock left. The database checks and changes in one statement, so it
//! never oversells and never refuses without need. It still lets one user order twice, when two requests
//! both check before either commits. Unsafe on purpose by itself; [`place_order`] is what the lock strategies
//! run under their lock.

use super::{Error, Purchase};
use crate::order::model::NewOrder;
use crate::order::store::Text;

/// Buys; see the module.
pub async fn buy(purchase: Purchase<'_>) -> Result<i64, Error> {
    purchase.check_buyer().await?;
    let order = purchase.new_order().await?;
    place_order(purchase, &order).await
}

/// Checks the buyer, inserts, decrements and commits, in one round trip. Safe for one buyer at a time; callers ensure that with
/// a lock.
pub async fn place_order(purchase: Purchase<'_>, order: &NewOrder) -> Result<i64, Error> {
    let transaction = purchase.begin().await?;
    let text = Text::default().insert_if_first(order).take([order]);
    transaction.place(order, text).await
}
