//! Unit rows: one row for each unit of stock, of which a purchase claims one that nobody else has locked (`FOR UPDATE SKIP
//! LOCKED`), so that buyers do not queue at the sale's row. A second order of one user is refused by the unique index. The
//! rows are inserted when the sale is published, so there can be at most [`MOST_UNITS`](crate::voucher::publish::MOST_UNITS).

use super::{Error, Purchase};
use crate::order::model::Placement;

/// Buys; see the module.
pub async fn buy(purchase: Purchase<'_>) -> Result<i64, Error> {
    let order = purchase.new_order().await?;
    let mut transaction = purchase.begin().await?;
    let placement = transaction.place_with_unit(&order).await?;
    if placement == Placement::Placed {
        return transaction.commit(&order).await.map(|()| order.id);
    }
    transaction.rollback().await?;
    if placement == Placement::SoldOut {
        return Err(Error::SoldOut);
    }
    // A key refused the order: the one of buyers or, after the counter of ids was lost, that of ids.
    let status = purchase
        .context
        .parts
        .store
        .buyer_status(purchase.buyer)
        .await?;
    let existing = status.and_then(|status| status.order_id);
    Err(existing.map_or(Error::DuplicateId, |id| Error::AlreadyOrdered(Some(id))))
}
