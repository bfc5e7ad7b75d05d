//! The wait queue for semaphore permits: the waiters of one process are served in order, by one
//! shared subscription.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::error::Error;
use crate::shared::Shared;
use crate::waiting::deadline::{earlier, outage_pause, until};
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
/// several. After a third of the lease at the head it goes to the end, since it may ask for more
/// permits than there are. A try that Redis does not answer is repeated. `None` when no permits
/// were acquired until the deadline.
///
/// # Errors
/// Those of `attempt` but for [`Error::Unavailable`].
pub(crate) async fn wait<T, F>(
    shared: &Shared,
    channel: &Arc<str>,
    deadline: Option<Instant>,
    attempt: impl FnMut() -> F,
) -> Result<Option<T>, Error>
where
    F: Future<Output = Result<Try<T>, Error>>,
{
    shared.unless_closed(wait_until(shared, channel, deadline, attempt)).await
}

async fn wait_until<T, F>(
    shared: &Shared,
    channel: &Arc<str>,
    deadline: Option<Instant>,
    mut attempt: impl FnMut() -> F,
) -> Result<Option<T>, Error>
where
    F: Future<Output = Result<Try<T>, Error>>,
{
    match until(deadline, attempt()).await {
        None => return Ok(None),
        Some(Ok(Try::Acquired(permits))) => return Ok(Some(permits)),
        Some(Ok(Try::NotFree(_)) | Err(Error::Unavailable { .. })) => {}
        Some(Err(error)) => return Err(error),
    }
    let subscription = subscribe(&shared.wakeups, channel, &shared.config, deadline).await;
    let mut failures: u32 = 0;
    // The head may have been reached at the deadline.
    while deadline.is_none_or(|deadline| Instant::now() < deadline) {
        let Some(_head) = until(deadline, subscription.queue_head()).await else {
            return Ok(None);
        };
        // Then it goes to the end of the queue: it may ask for more permits than there will ever be.
        let turn_ends = Instant::now() + shared.config.lease / 3;
        while deadline.is_none_or(|deadline| Instant::now() < deadline) {
            let mut message = pin!(subscription.message());
            message.as_mut().enable();
            let sleep = match until(deadline, attempt()).await {
                None => return Ok(None),
                Some(Ok(Try::Acquired(permits))) => return Ok(Some(permits)),
                Some(Ok(Try::NotFree(free_in))) => {
                    failures = 0;
                    free_in.unwrap_or(Duration::MAX)
                }
                Some(Err(Error::Unavailable { cause, .. })) => {
                    failures = failures.saturating_add(1);
                    tracing::debug!(
                        channel = &**channel,
                        error = cause,
                        failures,
                        "no answer; retrying"
                    );
                    outage_pause(failures)
                }
                Some(Err(error)) => return Err(error),
            };
            if Instant::now() >= turn_ends {
                break;
            }
            // Messages can be lost (a channel denied to the client that releases, or one that dies),
            // so try again now and then, whatever is known.
            let longest = if subscription.is_confirmed() {
                shared.config.lease / 3
            } else {
                shared.config.poll_interval
            };
            let wake = (Instant::now() + sleep.min(longest)).min(turn_ends);
            tokio::select! {
                () = &mut message => {}
                () = sleep_until(earlier(wake, deadline)) => {}
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod interleavings;
