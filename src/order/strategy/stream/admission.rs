//! A purchase that waits for its call of `lua/stream_admit.lua`, and the answer. Pure: no I/O.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::{Cause, Error};
use crate::order::model::NewOrder;
use crate::voucher::sales::Window;

/// A call may run for this long after it was sent: a server that stood still must not admit a buyer who has gone since.
const RUNS_WITHIN: Duration = Duration::from_secs(3);

/// A purchase that waits for its call.
#[derive(Clone, Copy)]
pub(super) struct Admission {
    pub order: NewOrder,
    /// The sale may end while it waits.
    pub window: Window,
    /// Its call is not made after this.
    pub deadline: Instant,
}

impl Admission {
    /// Refuses a purchase that must not be sent any more, because its sale or its time is over.
    pub fn require_in_time(&self) -> Result<(), Error> {
        self.window.require_open()?;
        if Instant::now() < self.deadline {
            Ok(())
        } else {
            Err(Error::Unavailable(Cause::PurchaseDeadline))
        }
    }

    /// For how long from now on it may be admitted.
    pub fn runs_within(&self) -> Duration {
        let time_left = self.deadline.saturating_duration_since(Instant::now());
        RUNS_WITHIN.min(time_left).min(self.window.ends_in())
    }
}

/// What `lua/stream_admit.lua` says of a purchase.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Verdict {
    Pending,
    SoldOut,
    /// Too many users have pending orders.
    Full,
    /// The user has a claim.
    Claimed,
    /// The user has a claim by this order, which is pending.
    ClaimedBy(i64),
    /// The sale is being counted.
    Closed,
    /// The call came too late.
    Late,
}

impl Verdict {
    pub fn parse(text: &str) -> Result<Verdict, Error> {
        Ok(match text.split_once(' ').unwrap_or((text, "")) {
            ("pending", "") => Verdict::Pending,
            ("sold", "out") => Verdict::SoldOut,
            ("full", "") => Verdict::Full,
            ("claimed", "") => Verdict::Claimed,
            ("claimed", order) => order.parse().map_or(Verdict::Claimed, Verdict::ClaimedBy),
            ("closed", "") => Verdict::Closed,
            ("late", "") => Verdict::Late,
            _ => {
                let detail = format!("stream_admit.lua returned {text:?}");
                return Err(Error::Internal(detail));
            }
        })
    }
}

/// What became of a purchase's call.
pub(super) struct Answer {
    pub verdict: Result<Verdict, Error>,
    /// Whether an earlier call, whose reply was lost, may have run, or may still run.
    pub in_doubt: bool,
}

impl Answer {
    /// The answer to a purchase that was certainly not admitted.
    pub fn refusal(error: Error) -> Answer {
        Answer {
            verdict: Err(error),
            in_doubt: false,
        }
    }

    /// The answer to a purchase that was sent, without a reply.
    pub fn unknown() -> Answer {
        Answer {
            verdict: Err(Error::OutcomeUnknown(None)),
            in_doubt: true,
        }
    }
}
