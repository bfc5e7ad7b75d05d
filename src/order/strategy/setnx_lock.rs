//! [`conditional`] under a per-user `SET NX PX` lock in Redis, released only by its owner. All nodes
//! share it. It is safe while the lease outlives the work: it is never renewed, and a holder that is
//! paused past it has lost it without knowing. Then the database's unique index has the last word.

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
    // Not the reentrant lock's key: a string under it would break that lock's hash commands.
    let name = format!("lock:setnx:order:{}", buyer.user_id);
    let lock = tools.locks.setnx(&name, tools.setnx_lease);
    let held = trace::step(lock.try_acquire(), steps::tried_in_redis).await?;
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
