//! Unit rows: one row for each unit of stock, of which a purchase claims one that nobody else has locked (`FOR UPDATE SKIP
//! LOCKED`), so that buyers do not queue at the sale's row. A second order of one user is refused by the unique index. The
//! rows are inserted when the sale is published, so there can be at most [`MOST_UNITS`](crate::voucher::publish::MOST_UNITS).

use super::{Error, Purchase};

/// Buys; see the module.
pub async fn buy(purchase: Purchase<'_>) -> Result<i64, Error> {
    let order = purchase.new_order().await?;
    purchase.begin().await?.place_with_unit(&order).await
}
