//! What the stream knows of an order: whether it was refused, or is pending.

use std::sync::atomic::Ordering::Relaxed;

use chrono::{DateTime, TimeDelta};
use redis::AsyncCommands;

use super::replies::{Ask, Standing, Unnamed};
use super::{Member, OrderStream};
use crate::error::Error;

impl OrderStream {
    /// What is known of this order of the user's. An order that is no longer pending is a row by then.
    ///
    /// # Errors
    /// Redis did not answer.
    pub async fn standing(&self, user_id: i64, order_id: i64) -> Result<Standing, Error> {
        let member = &self.0;
        // The user's pending orders in the hash. If a new mark begins, the script writes the hash anew first.
        let view = member.view(Ask::User(user_id)).await?;
        let refused: Option<String> = member
            .redis
            .clone()
            .get(member.keys.refused(order_id))
            .await?;
        let refused = refused.as_deref().and_then(|text| text.split_once(' '));
        if let Some((user, code)) = refused
            && user == user_id.to_string()
        {
            return Ok(Standing::Refused(refusal(code)));
        }
        let order_id = order_id.to_string();
        let mut pending = view.pending.split(' ');
        if pending.any(|name| name.split(':').nth(1) == Some(&order_id)) {
            return Ok(Standing::Pending);
        }
        Ok(Standing::Unnamed(Unnamed {
            known_for: TimeDelta::microseconds(view.at_us - view.mark.since_us),
            at: DateTime::from_timestamp_micros(view.at_us).unwrap_or_default(),
        }))
    }

    /// Counts an order that is said not to exist and is older than the stream's data.
    pub fn count_unknown_after_loss(&self) {
        self.0.stats.unknown_after_loss.fetch_add(1, Relaxed);
    }
}

impl Member {
    /// When the grace of an order that is found nowhere is over, µs of Redis' clock: from then on no call admits it, and a
    /// look-up says that it does not exist. Both go by this one clock, as those of two instances differ.
    pub(super) fn grace_ends_us(&self, order_id: i64) -> i64 {
        let drawn_us = self.store.drawn_at(order_id).timestamp_micros();
        drawn_us.saturating_add(self.config.stream_unsure.as_micros() as i64)
    }
}

/// The code of a refusal, with the order that the user has.
pub(super) fn code(refusal: &Error) -> String {
    refusal.order_id().map_or(refusal.code().to_owned(), |id| {
        format!("{} {id}", refusal.code())
    })
}

/// The refusal that a code stands for.
fn refusal(code: &str) -> Error {
    let (code, order) = code.split_once(' ').unwrap_or((code, ""));
    match code {
        "SOLD_OUT" => Error::SoldOut,
        "ALREADY_ORDERED" => Error::AlreadyOrdered(order.parse().ok()),
        "VOUCHER_NOT_FOUND" => Error::VoucherNotFound,
        _ => Error::OrderFailed,
    }
}
