//! What became of an admitted order, for its buyer. `seckill:place:{userId}` is a hash, by order id:
//! `p <voucher> <entry>` while it is pending, `r <voucher> <code> [<order the user has>]` once it is refused,
//! and nothing once it is ordered, for then the database has it.

use redis::AsyncCommands;

use super::{Inner, Stream};
use crate::error::Error;
use crate::order::model::{Buyer, Order};

/// Codes of refusals that are remembered.
pub(super) mod code {
    pub const SOLD_OUT: &str = "SOLD_OUT";
    pub const ALREADY_ORDERED: &str = "ALREADY_ORDERED";
    pub const VOUCHER_NOT_FOUND: &str = "VOUCHER_NOT_FOUND";
    pub const ORDER_FAILED: &str = "ORDER_FAILED";
}

/// An order as its buyer finds it.
#[derive(Debug)]
pub enum Found {
    /// Committed.
    Ordered(Box<Order>),
    /// Admitted, and not decided yet.
    Pending,
}

/// Where a place stands.
#[derive(Debug, PartialEq)]
enum Place<'a> {
    Pending { voucher: &'a str },
    Refused { code: &'a str },
}

fn parse(text: &str) -> Option<Place<'_>> {
    let (kind, rest) = text.split_once(' ')?;
    let (voucher, rest) = rest.split_once(' ')?;
    match kind {
        "p" => Some(Place::Pending { voucher }),
        "r" => Some(Place::Refused { code: rest }),
        _ => None,
    }
}

/// The refusal that a code stands for.
pub(super) fn refusal(code: &str) -> Error {
    let (code, order) = code.split_once(' ').unwrap_or((code, ""));
    match code {
        code::SOLD_OUT => Error::SoldOut,
        code::ALREADY_ORDERED => Error::AlreadyOrdered(order.parse().ok()),
        code::VOUCHER_NOT_FOUND => Error::VoucherNotFound,
        _ => Error::OrderFailed,
    }
}

impl Stream {
    /// One of the user's own orders, on whatever rung it was bought.
    ///
    /// # Errors
    /// The refusal where the place was refused; [`Error::OrderNotFound`]; [`Error::Unavailable`].
    pub async fn find(&self, user_id: i64, order_id: i64) -> Result<Found, Error> {
        let store = &self.0.store;
        let committed = async || {
            let order = store.find(order_id).await?.filter(|order| order.user_id == user_id);
            Ok::<_, Error>(order.map(|order| Found::Ordered(Box::new(order))))
        };
        if let Some(order) = committed().await? {
            return Ok(order);
        }
        let place: Option<String> =
            self.0.redis.clone().hget(key(user_id), order_id.to_string()).await?;
        match place.as_deref().and_then(parse) {
            Some(Place::Pending { .. }) => Ok(Found::Pending),
            Some(Place::Refused { code }) => Err(refusal(code)),
            // It may have been committed between the two looks.
            None => committed().await?.ok_or(Error::OrderNotFound),
        }
    }
}

impl Inner {
    /// The order, pending or committed, for which a user has a claim on a sale.
    pub(super) async fn claim(&self, buyer: Buyer) -> Result<Option<i64>, Error> {
        let places: Vec<(String, String)> = self.redis.clone().hgetall(key(buyer.user_id)).await?;
        let voucher = buyer.voucher_id.to_string();
        let pending = |(id, text): &(String, String)| match parse(text) {
            Some(Place::Pending { voucher: of }) if of == voucher => id.parse().ok(),
            _ => None,
        };
        if let Some(id) = places.iter().find_map(pending) {
            return Ok(Some(id));
        }
        Ok(self.store.standing(buyer).await?.and_then(|standing| standing.order_id))
    }
}

pub(super) fn key(user_id: i64) -> String {
    format!("seckill:place:{user_id}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_reads_back() {
        assert_eq!(parse("p 7 1-0"), Some(Place::Pending { voucher: "7" }));
        assert_eq!(parse("r 7 SOLD_OUT"), Some(Place::Refused { code: "SOLD_OUT" }));
        assert_eq!(parse(""), None);
        assert!(matches!(refusal("ALREADY_ORDERED 5"), Error::AlreadyOrdered(Some(5))));
        assert!(matches!(refusal("ALREADY_ORDERED"), Error::AlreadyOrdered(None)));
        assert!(matches!(refusal("SOLD_OUT"), Error::SoldOut));
        assert!(matches!(refusal("else"), Error::OrderFailed));
    }
}
