//! The wait queue for semaphore permits: the waiters of one process are served in order, by one
//! shared subscription.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::error::Error;
use crate::shared::Shared;
use crate::stats::KindCounters;
use crate::waiting::patience::{Patience, Tried};
use crate::waiting::wakeups::subscribe;

pub(crate) enum Try<T> {
    Acquired(T),
    /// Too few were free; the next may become free without a message after this time.
    NotFree(Option<Duration>),
}

/// Try, subscribe, queue; then, at the head of the queue, try and sleep until a message. The next
/// waiter tries as soon as it is at the head, so that one message about several permits serves
/// several. After a third of the lease at the head it goes to the end, since it may ask for more
/// permits than there are. A try that Redis does not answer is repeated. `None` when no permits
/// were acquired within the limit.
///
/// # Errors
/// Those of `attempt`; [`Error::Unavailable`] as in [`Patience`].
pub(crate) async fn wait<T, F>(
    shared: &Shared,
    counters: &KindCounters,
    channel: &Arc<str>,
    limit: Duration,
    attempt: impl FnMut() -> F,
) -> Result<Option<T>, Error>
where
    F: Future<Output = Result<Try<T>, Error>>,
{
    let started = Instant::now();
    let waiting = wait_until(shared, counters, channel, limit, attempt);
    let result = shared.unless_closed(waiting).await;
    counters.acquired(&result, started.elapsed(), true);
    result
}

async fn wait_until<T, F>(
    shared: &Shared,
    counters: &KindCounters,
    channel: &Arc<str>,
    limit: Duration,
    mut attempt: impl FnMut() -> F,
) -> Result<Option<T>, Error>
where
    F: Future<Output = Result<Try<T>, Error>>,
{
    let mut patience = Patience::new(&shared.config, limit);
    if let Tried::Answered(Try::Acquired(permits)) = patience.attempt(attempt()).await? {
        return Ok(Some(permits));
    }
    let _waiting = counters.waiting();
    let subscription = subscribe(&shared.wakeups, channel, &shared.config, patience.end()).await;
    // The head may have been reached at the deadline.
    while !patience.is_over() {
        let Ok(_head) = timeout_at(patience.end(), subscription.queue_head()).await else { break };
        // Then it goes to the end of the queue: it may ask for more permits than there will ever be.
        let turn_ends = Instant::now() + shared.config.lease / 3;
        while !patience.is_over() {
            let mut message = pin!(subscription.message());
            message.as_mut().enable();
            let sleep = match patience.attempt(attempt()).await? {
                Tried::Answered(Try::Acquired(permits)) => return Ok(Some(permits)),
                Tried::Answered(Try::NotFree(free_in)) => free_in.unwrap_or(Duration::MAX),
                Tried::Unanswered(pause) => pause,
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
                () = patience.sleep_until(wake) => {}
            }
        }
    }
    patience.timed_out()
}

#[cfg(test)]
mod interleavings;
