//! A purchase's deadline: what waits before the commit waits until then, and the request that commits is not sent after it.

use crate::error::{Cause, Error};

/// A purchase's deadline, of tokio's clock.
pub type Deadline = tokio::time::Instant;

/// The output of `work`, where it is there at the purchase's `deadline`. What is cut off here was before the commit.
///
/// # Errors
/// [`Error::Unavailable`] past it.
pub async fn until<T>(deadline: Deadline, work: impl Future<Output = T>) -> Result<T, Error> {
    tokio::time::timeout_at(deadline, work)
        .await
        .map_err(|_| Error::Unavailable(Cause::PurchaseDeadline))
}
