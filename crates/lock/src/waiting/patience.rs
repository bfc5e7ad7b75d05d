//! For how long a waiting call goes on: to its own limit, and through no longer an outage than
//! configured.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::config::LockConfig;
use crate::error::Error;
use crate::waiting::deadline::{earlier, outage_pause, until};

/// The patience of one waiting call.
pub(crate) struct Patience {
    deadline: Option<Instant>,
    longest_outage: Option<Duration>,
    /// Whether a try was answered.
    answered: bool,
    /// The tries in a row that were not answered.
    outage: Option<Outage>,
}

struct Outage {
    since: Instant,
    tries: u32,
    last: Error,
}

/// How one try ended.
pub(crate) enum Tried<T> {
    Answered(T),
    /// Not answered: pause for this long, and try again.
    Unanswered(Duration),
}

impl Patience {
    pub(crate) fn new(config: &LockConfig, deadline: Option<Instant>) -> Self {
        Self { deadline, longest_outage: config.outage_limit, answered: false, outage: None }
    }

    /// The limit of the call itself.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// When the call ends, if nothing changes until then.
    pub(crate) fn end(&self) -> Option<Instant> {
        self.end_if(self.outage.as_ref().map(|outage| outage.since))
    }

    /// As [`end`](Self::end), with an outage that has begun at this instant.
    fn end_if(&self, outage: Option<Instant>) -> Option<Instant> {
        let gives_up = self.longest_outage.and_then(|longest| outage?.checked_add(longest));
        match gives_up {
            Some(at) => Some(earlier(at, self.deadline)),
            None => self.deadline,
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.end().is_some_and(|end| Instant::now() >= end)
    }

    /// Sleep until then, but not past the [`end`](Self::end).
    pub(crate) async fn sleep_until(&self, at: Instant) {
        sleep_until(earlier(at, self.end())).await;
    }

    /// Await one try, but not past the end.
    ///
    /// # Errors
    /// Those of the try; [`Error::Unavailable`] only when the end is reached and Redis does not answer.
    pub(crate) async fn attempt<T>(
        &mut self,
        attempt: impl Future<Output = Result<T, Error>>,
    ) -> Result<Tried<T>, Error> {
        let since = self.outage.as_ref().map_or_else(Instant::now, |outage| outage.since);
        let error = match until(self.end_if(Some(since)), attempt).await {
            Some(Ok(answer)) => {
                (self.answered, self.outage) = (true, None);
                return Ok(Tried::Answered(answer));
            }
            Some(Err(error)) if !error.is_retryable() => return Err(error),
            Some(Err(error)) => error,
            // Cut short, it says nothing: the answer before counts.
            None if self.answered && self.outage.is_none() && self.is_over() => {
                return Ok(Tried::Unanswered(Duration::ZERO));
            }
            None => {
                let cause = "no answer when the waiting limit was reached".into();
                Error::Unavailable { operation: "acquire", cause }
            }
        };
        let tries = self.outage.as_ref().map_or(0, |outage| outage.tries).saturating_add(1);
        self.outage = Some(Outage { since, tries, last: error.clone() });
        if self.is_over() {
            return Err(error);
        }
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        tracing::debug!(error = cause, tries, "no answer while waiting; retrying");
        Ok(Tried::Unanswered(outage_pause(tries)))
    }

    /// The outcome of a call that has reached its end.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the last try that ended was not answered.
    pub(crate) fn timed_out<T>(self) -> Result<Option<T>, Error> {
        match self.outage {
            Some(outage) => Err(outage.last),
            None => Ok(None),
        }
    }
}
