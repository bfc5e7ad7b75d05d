//! Per-user lock inside the process around [`conditional`]. One node lets a user order once. With two
//! nodes there are two locks, and each lets one of the user's requests through. Unsafe on purpose.

use super::{Error, Purchase, conditional};
use crate::request::trace;

/// Buys; see the module.
pub async fn buy(purchase: Purchase<'_>) -> Result<i64, Error> {
    purchase.check_buyer().await?;
    let order = purchase.new_order().await?;
    let guard = purchase.lock_in_process().await?;
    let outcome = conditional::place_order(purchase, &order).await;
    drop(guard);
    trace::mark("unlocked", "place=memory");
    outcome
}
