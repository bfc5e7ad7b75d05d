//! Unit rows: one row per unit of stock, of which a purchase claims one that nobody else has locked (`FOR UPDATE SKIP
//! LOCKED`), so that buyers do not queue at the sale's row. The rows are a bounded pool: when no unit is free, a purchase
//! refills it from the stock, which remains the only place from which other nodes sell. A second order of one user is
//! refused by the unique index.
//!
//! Who has to wait does so without a connection to the database: for the refill, which is one purchase's for all of the
//! node ([`UnitPool`](crate::voucher::unit_pool::UnitPool)), and for an earlier try of the same user on this node, by a
//! lock in the process. That lock saves connections; what is right does not depend on it.

use super::{Buyer, Deadline, Error, PurchaseContext, Sale};
use crate::order::deadline::until;
use crate::order::model::Placement;

/// How often a purchase finds that others took all units of a refill before it starts over.
const REFILLS: u32 = 8;

/// Buys; see the module.
pub async fn buy(
    context: &PurchaseContext,
    buyer: Buyer,
    sale: &Sale,
    deadline: Deadline,
) -> Result<i64, Error> {
    let PurchaseContext { store, process_locks, .. } = context;
    let order = context.new_order(buyer, sale, deadline).await?;
    let _turn = until(deadline, process_locks.acquire(buyer.user_id.cast_unsigned())).await?;
    for _ in 0..REFILLS {
        let mut look = sale.units.look();
        if look.first.is_some() {
            let mut transaction = store.begin_until(deadline).await?;
            // While this one waited for its connection, others may have found that no unit is free.
            look = sale.units.look();
            if let Some(first) = look.first {
                match transaction.place_with_unit(&order, first).await? {
                    Placement::Placed => {
                        return transaction.commit(&order).await.map(|()| order.id);
                    }
                    // A key refused the order: the one of users or, after the counter of ids was lost, that of ids.
                    Placement::AlreadyOrdered => {
                        let existing = transaction.undo_for_order_of(buyer).await?;
                        return Err(match existing {
                            Some(id) => Error::AlreadyOrdered(Some(id)),
                            None => Error::DuplicateId,
                        });
                    }
                    Placement::SoldOut => {
                        sale.units.found_none(look);
                        transaction.rollback().await?;
                    }
                }
            }
        }
        // Boxed, because it is rare, and every purchase would carry its size.
        let refill = Box::pin(sale.units.refill(look, store.refill_units(buyer.voucher_id)));
        if until(deadline, refill).await??.is_none() {
            // Some of those for whom nothing is left have an order.
            context.check_buyer(buyer).await?;
        }
    }
    Err(Error::Conflict)
}
