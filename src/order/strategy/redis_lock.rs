//! What the two strategies with a lock in Redis share: the order is placed while the lock is held, and the lock is
//! released after the commit.

use super::{Error, Purchase, conditional};
use crate::order::model::NewOrder;
use crate::request::trace;

/// Places the order under the lock `name`, then releases it. Without a guard, which means that
/// somebody else has the lock, the error is [`Error::LockBusy`].
pub async fn place_locked<G, F>(
    purchase: Purchase<'_>,
    order: &NewOrder,
    name: &str,
    guard: Option<G>,
    release: impl FnOnce(G) -> F,
) -> Result<i64, Error>
where
    F: Future<Output = Result<(), lock::Error>>,
{
    let guard = guard.ok_or(Error::LockBusy)?;
    let outcome = conditional::place_order(purchase, order).await;
    // After the commit, never before. The outcome stands even if the release fails: then the lease
    // ends the lock.
    if let Err(error) = release(guard).await {
        tracing::warn!(%error, lock = name, "the purchase lock could not be released");
    }
    trace::mark("unlocked", "place=redis");
    outcome
}
