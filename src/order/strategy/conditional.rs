//! Conditional decrement: take one where there is stock left. The database checks and changes in one statement, so it
//! never oversells and never refuses without need. It still lets one user order twice, when two requests
//! both check before either commits. Unsafe on purpose by itself; [`place_order`] is what the lock strategies
//! run under their lock.

use super::{Error, Purchase};
use crate::order::model::NewOrder;
use crate::order::store::{OrderTransaction, Taken};

/// Buys; see the module.
pub async fn buy(purchase: Purchase<'_>) -> Result<i64, Error> {
    purchase.check_buyer().await?;
    let order = purchase.new_order().await?;
    place_order(purchase, &order).await
}

/// Checks the buyer, inserts, decrements and commits, in one transaction of two round trips. Safe for one buyer at a
/// time; callers ensure that with a lock.
pub async fn place_order(purchase: Purchase<'_>, order: &NewOrder) -> Result<i64, Error> {
    let mut transaction = purchase.begin().await?;
    let inserted = transaction.insert_if_first(order).await?;
    end(transaction, order, inserted).await
}

/// Decrements and commits where the order is inserted; undoes the transaction where the buyer had one, or nothing is
/// left.
pub async fn end(
    transaction: OrderTransaction,
    order: &NewOrder,
    inserted: bool,
) -> Result<i64, Error> {
    let (open, refusal) = if inserted {
        match transaction
            .take_and_commit(order, &[(order.buyer.voucher_id, 1)].into())
            .await?
        {
            Taken::Committed => return Ok(order.id),
            Taken::Not(open, Error::SoldOut) => (*open, Error::SoldOut),
            Taken::Not(_, error) => return Err(error),
        }
    } else {
        (transaction, Error::AlreadyOrdered(None))
    };
    open.rollback().await?;
    Err(refusal)
}
