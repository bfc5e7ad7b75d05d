//! Per-user re-entrant lock in Redis around [`super::conditional`], compatible with Redisson: renewed while its holder
//! lives, released only by its owner. All nodes share it, those in Java too. If it is lost nevertheless (a Redis that lost
//! its data, a pause past the lease), the database's unique index refuses the second order. The default.

use super::redis_lock::place_locked;
use super::{Error, Purchase};
use crate::order::steps;
use crate::request::trace;

/// Buys; see the module.
pub async fn buy(purchase: Purchase<'_>) -> Result<i64, Error> {
    let order = purchase.new_order().await?;
    let name = format!("lock:order:{}", purchase.buyer.user_id);
    let lock = purchase.context.locks.lock(&name);
    let acquired = trace::step(lock.try_acquire(), steps::tried_in_redis).await?;
    place_locked(purchase, &order, &name, acquired, |guard| guard.release()).await
}
