//! How long a waiting call goes on: until its own limit, and through an outage no longer than
//! configured. Also the random pauses between its tries.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use crate::config::{LONGEST, LockConfig};
use crate::error::Error;

/// The longest pause of a waiter during an outage.
const MAX_OUTAGE_PAUSE: Duration = Duration::from_secs(1);

pub(crate) struct Patience {
    deadline: Instant,
    longest_outage: Duration,
    /// Whether any try was answered.
    answered: bool,
    /// The tries in a row that were not answered.
    outage: Option<Outage>,
}

struct Outage {
    since: Instant,
    tries: u32,
    last: Error,
}

pub(crate) enum Tried<T> {
    Answered(T),
    /// Not answered: pause for this long, and try again.
    Unanswered(Duration),
}

impl Patience {
    /// For a call that starts now. The limit is cut to a year; a call without a limit then starts a new
    /// wait.
    pub(crate) fn new(config: &LockConfig, limit: Duration) -> Self {
        let deadline = Instant::now() + limit.min(LONGEST);
        let longest_outage = config.outage_limit.unwrap_or(LONGEST);
        Self {
            deadline,
            longest_outage,
            answered: false,
            outage: None,
        }
    }

    /// The limit of the call itself.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// When the call ends, if nothing changes until then.
    pub(crate) fn end(&self) -> Instant {
        self.outage
            .as_ref()
            .map_or(self.deadline, |outage| self.end_of_outage(outage.since))
    }

    fn end_of_outage(&self, since: Instant) -> Instant {
        self.deadline.min(since + self.longest_outage)
    }

    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.end()
    }

    /// Sleep until then, but not past the [`end`](Self::end).
    pub(crate) async fn sleep_until(&self, wake_at: Instant) {
        sleep_until(wake_at.min(self.end())).await;
    }

    /// Await one try, but not past the end.
    ///
    /// # Errors
    /// Those of the try; [`Error::Unavailable`] only when the end is reached and Redis does not answer.
    pub(crate) async fn attempt<T>(
        &mut self,
        attempt: impl Future<Output = Result<T, Error>>,
    ) -> Result<Tried<T>, Error> {
        let since = self
            .outage
            .as_ref()
            .map_or_else(Instant::now, |outage| outage.since);
        let error = match timeout_at(self.end_of_outage(since), attempt).await {
            Ok(Ok(answer)) => {
                self.answered = true;
                self.outage = None;
                return Ok(Tried::Answered(answer));
            }
            Ok(Err(error)) if !error.is_retryable() => return Err(error),
            Ok(Err(error)) => error,
            // The limit cut this try short, which says nothing about Redis: the answer before it counts.
            Err(_) if self.answered && self.outage.is_none() && self.is_over() => {
                return Ok(Tried::Unanswered(Duration::ZERO));
            }
            Err(_) => {
                let cause = "no answer when the waiting limit was reached".into();
                Error::Unavailable {
                    operation: "acquire",
                    cause,
                }
            }
        };
        let tries = self
            .outage
            .as_ref()
            .map_or(0, |outage| outage.tries)
            .saturating_add(1);
        self.outage = Some(Outage {
            since,
            tries,
            last: error.clone(),
        });
        if self.is_over() {
            return Err(error);
        }
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        tracing::debug!(error = cause, tries, "no answer while waiting; retrying");
        Ok(Tried::Unanswered(outage_pause(tries)))
    }

    /// The outcome of a call that has reached its end.
    pub(crate) fn timed_out<T>(self) -> Result<Option<T>, Error> {
        match self.outage {
            Some(outage) => Err(outage.last),
            None => Ok(None),
        }
    }
}

/// How long a waiter pauses after the `failures`th try in a row that Redis did not answer: twice as
/// long each time, and random, so that waiters that have piled up do not come back all at once.
fn outage_pause(failures: u32) -> Duration {
    let longest = Duration::from_millis(25 << failures.min(6)).min(MAX_OUTAGE_PAUSE);
    longest.mul_f64(0.5 + fastrand::f64() / 2.0)
}

/// The pause after the `tries`th failed try in a row: contenders that acquire the same locks in step
/// would refuse each other forever. Random, and up to twice as long each time, to 64 ms.
pub(crate) fn back_off(tries: u32) -> Duration {
    Duration::from_millis(1 << tries.min(6)).mul_f64(fastrand::f64())
}
