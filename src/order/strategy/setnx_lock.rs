//! Per-user `SET NX PX` lock in Redis around [`super::conditional`], released only by its owner. All nodes
//! share it. It is safe while the lease outlives the work: it is never renewed, and a holder that is
//! paused past it has lost it without knowing. Then the database's unique index refuses the second order.

use super::redis_lock::place_locked;
use super::{Error, Purchase};
use crate::order::steps;
use crate::request::trace;

/// Buys; see the module.
pub async fn buy(purchase: Purchase<'_>) -> Result<i64, Error> {
    let order = purchase.new_order().await?;
    // Not the reentrant lock's key: a string under it would break that lock's hash commands.
    let name = format!("lock:setnx:order:{}", purchase.buyer.user_id);
    let context = purchase.context;
    let lock = context.locks.setnx(&name, context.setnx_lease);
    let guard = trace::step(lock.try_acquire(), steps::tried_in_redis).await?;
    place_locked(purchase, &order, &name, guard, |guard| guard.release()).await
}
