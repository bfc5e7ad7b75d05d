//! A purchase's deadline: every wait before the commit ends then, and the request that commits is not sent after it.

use crate::error::{Cause, Error};

/// A purchase's deadline, by tokio's clock.
pub type Deadline = tokio::time::Instant;

/// Waits for `work` until the purchase's `deadline`. Only for steps before the commit: work that is cut off must have
/// committed nothing.
///
/// # Errors
/// [`Error::Unavailable`] if `work` is not done by then.
pub async fn until<T>(deadline: Deadline, work: impl Future<Output = T>) -> Result<T, Error> {
    tokio::time::timeout_at(deadline, work)
        .await
        .map_err(|_| Error::Unavailable(Cause::PurchaseDeadline))
}
