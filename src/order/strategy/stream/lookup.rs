//! Looks an order up for its buyer: its row, the hash of pending orders, then its row for certain.

use std::sync::atomic::Ordering::Relaxed;

use redis::AsyncCommands;

use super::replies::{Ask, Mark};
use super::{Member, OrderStream};
use crate::error::{Cause, Error};
use crate::id::SEQUENCE_BITS;
use crate::order::model::Order;

impl OrderStream {
    /// One of the user's own orders, on whatever strategy it was bought; `None` while it is pending.
    ///
    /// # Errors
    /// The refusal where the order was refused; [`Error::OrderNotFound`], and then it will never exist;
    /// [`Error::Unavailable`], also of an order that is not found so soon after it was to be made, or after Redis lost data,
    /// that it may still be.
    pub async fn find(&self, user_id: i64, order_id: i64) -> Result<Option<Order>, Error> {
        let member = &self.0;
        // Another user's order says nothing of this user's entry, which may have the same id after the counter was lost.
        let own = |order: &Order| order.user_id == user_id;
        let row = member.reads.find(order_id).await?;
        let is_anothers = row.as_ref().is_some_and(|order| !own(order));
        let row = row.filter(own);
        if let Some(order) = row.as_ref().filter(|order| !order.is_refusal()) {
            return Ok(Some(order.clone()));
        }
        // What the hash names under the mark; under another one it is written anew first.
        let view = member.view(Ask::User(user_id)).await?;
        let refused: Option<String> = member
            .redis
            .clone()
            .get(member.keys.refused(order_id))
            .await?;
        let of_user = refused.as_deref().and_then(|text| text.split_once(' '));
        if let Some((_, code)) = of_user.filter(|(user, _)| *user == user_id.to_string()) {
            return Err(refusal(code));
        }
        // A refusal that is pending still is a row already: why, is written when it is resolved.
        let names = |name: &str| name.split(':').nth(1) == Some(&order_id.to_string());
        if view.pending.split(' ').any(names) {
            return Ok(None);
        }
        if row.is_some() {
            // Why, Redis does not know any more.
            return Err(Error::OrderFailed);
        }
        if is_anothers {
            // The primary key lets no other be.
            return Err(Error::OrderNotFound);
        }
        match member.reads.find_on_primary(order_id).await? {
            Some(order) if !own(&order) => Err(Error::OrderNotFound),
            Some(order) if order.is_refusal() => Err(Error::OrderFailed),
            Some(order) => Ok(Some(order)),
            None => Err(member.not_found(order_id, &view.mark)),
        }
    }
}

impl Member {
    /// What is said of an order that is found nowhere: while a call may be on its way that makes it, or a consumer or a server
    /// does not know yet what the others know, not that it will never exist.
    fn not_found(&self, order_id: i64, mark: &Mark) -> Error {
        let unsure = self.config.stream_unsure.as_secs() as i64;
        let under_mark = (self.clock.now_us() - mark.since_us) / 1_000_000;
        let drawn = self.store.local_seconds() - (order_id >> SEQUENCE_BITS);
        // No clock is a day ahead.
        if under_mark < unsure || (-86_400..unsure).contains(&drawn) {
            return Error::Unavailable(Cause::OrderUndecided);
        }
        if (under_mark..86_400).contains(&drawn) {
            self.stats.unknown_after_loss.fetch_add(1, Relaxed);
        }
        Error::OrderNotFound
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
