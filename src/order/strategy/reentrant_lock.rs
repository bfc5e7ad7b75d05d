//! [`conditional`] under a per-user lock in Redis that Redisson clients respect: re-entrant, renewed
//! while its holder lives, released only by its owner. All nodes share it, those in Java too. If it is
//! lost nevertheless (a Redis that forgot, a pause past the lease), the database's unique index has the
//! last word. The default.

use super::conditional;
use crate::error::Error;
use crate::order::model::Buyer;
use crate::order::purchase::Tools;
use crate::order::steps;
use crate::request::trace;
use crate::voucher::sales::Sale;

/// Buys; see the module's prose.
pub async fn buy(tools: &Tools, buyer: Buyer, sale: &Sale) -> Result<i64, Error> {
    let order = tools.new_order(buyer, sale).await?;
    let name = format!("lock:order:{}", buyer.user_id);
    let owner = tools.locks.owner();
    let lock = tools.locks.reentrant(&name)?;
    let held = trace::step(lock.try_acquire(&owner), steps::tried_in_redis).await?;
    let guard = held.ok_or(Error::LockBusy)?;
    let outcome = conditional::place(tools, &order).await;
    // After the commit, never before. The outcome stands even if the release fails: then the lease
    // ends the lock.
    if let Err(fault) = guard.release().await {
        tracing::warn!(%fault, lock = name, "the purchase lock could not be released");
    }
    steps::unlocked_in_redis();
    outcome
}
