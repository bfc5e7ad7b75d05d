//! The wait loop: try, subscribe, try again, sleep until a message comes or the lock may be free
//! without one, repeat.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::commands::Try;
use crate::config::LockConfig;
use crate::error::Error;
use crate::state::wakeups::{Wakeup, Wakeups, subscribe};
use crate::stats::KindCounters;
use crate::waiting::patience::{Patience, Tried};

/// How calls wait for one kind of lock.
pub(crate) struct Waiter<'a> {
    pub(crate) wakeups: &'a Arc<Wakeups>,
    pub(crate) config: &'a LockConfig,
    pub(crate) counters: &'a KindCounters,
}

impl Waiter<'_> {
    /// Wait until a try succeeds; `None` when none did within the limit. The second try covers a release
    /// between the first try and the subscription. From then on the next message is already awaited when
    /// a try is made, so that none is missed between the try and the sleep. Without a subscription it
    /// polls. A try that Redis does not answer is repeated.
    ///
    /// It sleeps no longer than a third of the configured lease, whatever is left of the holder's: the
    /// client that should send the message may have died, and a key can vanish without a message.
    ///
    /// # Errors
    /// Those of `attempt`; [`Error::Unavailable`] as in [`Patience`].
    pub(crate) async fn wait<T, F>(
        &self,
        mut patience: Patience,
        channel: impl FnOnce() -> Arc<str>,
        mut attempt: impl FnMut() -> F,
    ) -> Result<Option<T>, Error>
    where
        F: Future<Output = Result<Try<T>, Error>>,
    {
        if let Tried::Answered(Try::Acquired(held)) = patience.attempt(attempt()).await? {
            return Ok(Some(held));
        }
        let _waiting = self.counters.waiting();
        let subscription = subscribe(self.wakeups, &channel(), self.config, patience.end()).await;
        let longest_sleep = LockConfig::renewal_interval(self.config.lease);
        let mut wakeup = Wakeup::none();
        // The end may have been reached while it subscribed.
        while !patience.is_over() {
            let mut message = pin!(subscription.message());
            message.as_mut().enable();
            let sleep = match patience.attempt(attempt()).await? {
                Tried::Answered(Try::Acquired(held)) => {
                    wakeup.mark_used();
                    return Ok(Some(held));
                }
                Tried::Answered(Try::Refused(free_in)) => {
                    wakeup.mark_used();
                    u64::try_from(free_in).map_or(longest_sleep, Duration::from_millis)
                }
                // The wake-up, if there is one, is kept for the next try.
                Tried::Unanswered(pause) => pause,
            };
            let mut longest = longest_sleep;
            if !subscription.is_confirmed() {
                longest = longest.min(self.config.poll_interval);
            }
            let wake = Instant::now() + sleep.min(longest).max(Duration::from_millis(1));
            tokio::select! {
                biased;
                () = &mut message => wakeup = subscription.wakeup(),
                () = patience.sleep_until(wake) => {}
            }
        }
        patience.timed_out()
    }
}

#[cfg(test)]
#[path = "../../tests/unit/interleavings.rs"]
mod interleavings;
