//! Unit rows: one row per unit of stock, of which a purchase claims one that nobody else has locked (`FOR UPDATE SKIP
//! LOCKED`), so that buyers do not queue at the sale's row. The rows are a bounded pool: when no unit is free, the next
//! purchase refills it from the stock, which remains the only place from which other nodes sell. No lock is needed: a
//! second order of one user is refused by the unique index.

use super::{Buyer, Error, PurchaseContext, Sale};
use crate::order::model::{NewOrder, Placement};
use crate::order::store::units::{Claim, Refill};

/// How often a purchase finds that others took all units of a refill before it starts over.
const REFILLS: u32 = 8;

/// Buys; see the module.
pub async fn buy(context: &PurchaseContext, buyer: Buyer, sale: &Sale) -> Result<i64, Error> {
    let order = context.new_order(buyer, sale).await?;
    let mut claim = Claim::Unlocked(sale.first_unit);
    for _ in 0..REFILLS {
        match try_claim(context, &order, claim).await {
            // Where the last units were in flight, they are sold by now.
            Err(Error::SoldOut) if claim != Claim::Any => {}
            outcome => return outcome,
        }
        // Boxed, because it is rare, and every purchase would carry its size.
        claim = match Box::pin(context.store.refill_units(buyer.voucher_id)).await? {
            Refill::Ready => Claim::Unlocked(0),
            Refill::InFlight => Claim::Any,
            Refill::Empty => return Err(Error::SoldOut),
        };
    }
    Err(Error::Conflict)
}

/// [`Error::SoldOut`]: there is no such unit.
async fn try_claim(
    context: &PurchaseContext,
    order: &NewOrder,
    claim: Claim,
) -> Result<i64, Error> {
    let mut transaction = context.store.begin().await?;
    let placement = transaction.place_with_unit(order, claim).await?;
    if placement == Placement::Placed {
        transaction.commit(order).await?;
        return Ok(order.id);
    }
    transaction.rollback().await?;
    if placement == Placement::SoldOut {
        return Err(Error::SoldOut);
    }
    // A key refused the order: the one of users or, after the counter of ids was lost, that of ids.
    let status = context.store.buyer_status(order.buyer).await?;
    Err(match status.and_then(|status| status.order_id) {
        Some(id) => Error::AlreadyOrdered(Some(id)),
        None => Error::DuplicateId,
    })
}
