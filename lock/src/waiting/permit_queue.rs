//! The wait queue for semaphore permits: the waiters of one process are served in order, by one
//! shared subscription.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use crate::error::Error;
use crate::shared::Shared;
use crate::waiting::deadline::{earlier, until};
use crate::waiting::wakeups::subscribe;

/// How one try ended.
pub(crate) enum Try<T> {
    /// Permits were acquired.
    Acquired(T),
    /// Too few were free; the next may become free without a message after this time.
    NotFree(Option<Duration>),
}

/// Try, subscribe, queue; then, at the head of the queue, try and sleep until a message. The next
/// waiter tries as soon as it is at the head, so that one message about several permits serves
/// several. `None` when no permits were free until the deadline.
///
/// # Errors
/// Those of `attempt`; [`Error::Unavailable`] when the subscription cannot be made.
pub(crate) async fn wait<T, F>(
    shared: &Shared,
    channel: &Arc<str>,
    deadline: Option<Instant>,
    mut attempt: impl FnMut() -> F,
) -> Result<Option<T>, Error>
where
    F: Future<Output = Result<Try<T>, Error>>,
{
    if let Try::Acquired(permits) = until(deadline, "acquire", attempt()).await? {
        return Ok(Some(permits));
    }
    let subscription = subscribe(&shared.wakeups, channel, &shared.config, deadline).await?;
    let _head = match deadline {
        None => subscription.queue_head().await,
        Some(deadline) => match timeout_at(deadline, subscription.queue_head()).await {
            Ok(head) => head,
            Err(_) => return Ok(None),
        },
    };
    // The head may have been reached at the deadline.
    while deadline.is_none_or(|deadline| Instant::now() < deadline) {
        let mut message = pin!(subscription.message());
        message.as_mut().enable();
        let free_in = match until(deadline, "acquire", attempt()).await? {
            Try::Acquired(permits) => return Ok(Some(permits)),
            Try::NotFree(free_in) => free_in,
        };
        // Messages can be lost (a denied channel, a client that releases and dies), so try again now
        // and then, whatever is known.
        let poll = shared.config.lease / 3;
        let sleep = free_in.map_or(poll, |free_in| free_in.min(poll));
        tokio::select! {
            () = &mut message => {}
            () = sleep_until(earlier(Instant::now() + sleep, deadline)) => {}
        }
    }
    Ok(None)
}

#[cfg(test)]
mod interleavings;
