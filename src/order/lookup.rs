//! Look-up of an order by its id, whatever its strategy and whoever asks: its row, what the stream knows of it, and then its row
//! for certain. **"No such order" is said here and nowhere else**, and then there will never be one.

use std::time::Duration;

use chrono::TimeDelta;

use super::model::Order;
use super::store::OrderStore;
use super::store::decide::Probe;
use super::strategy::stream::{OrderStream, Standing, Unnamed};
use crate::error::{Cause, Error};

/// Looks orders up for their buyers. Cheap to clone.
#[derive(Clone)]
pub struct OrderLookup {
    store: OrderStore,
    stream: OrderStream,
    /// How long after an id was made an order under it may be on its way to the stream, unseen.
    unsure: Duration,
}

/// What a row under the id says of the user's order.
enum Row {
    Order(Order),
    Refusal,
    /// Under the primary key there is no other.
    OfAnother,
}

impl Row {
    fn as_seen_by(user_id: i64, order: Order) -> Row {
        if order.user_id != user_id {
            Row::OfAnother
        } else if order.is_refusal() {
            Row::Refusal
        } else {
            Row::Order(order)
        }
    }
}

impl OrderLookup {
    /// Looks up in this store, and asks this process's part of the stream.
    pub fn new(store: OrderStore, stream: OrderStream, unsure: Duration) -> Self {
        OrderLookup {
            store,
            stream,
            unsure,
        }
    }

    /// One of the user's own orders, on whatever strategy it was bought; `None` while it is pending.
    ///
    /// # Errors
    /// The refusal where the order was refused; [`Error::OrderNotFound`], and then it will never exist;
    /// [`Error::Unavailable`], also of an order that is not found so soon after it was to be made, or after Redis lost data,
    /// that it may still be.
    pub async fn find(&self, user_id: i64, order_id: i64) -> Result<Option<Order>, Error> {
        let row = self.store.find(order_id).await?;
        self.judge(user_id, order_id, row).await
    }

    /// As [`OrderLookup::find`], as a server has it that takes writes: while the database changes over, another one may show the
    /// order as it was before.
    pub async fn find_current(&self, user_id: i64, order_id: i64) -> Result<Option<Order>, Error> {
        let row = self.store.find_current(order_id).await?;
        self.judge(user_id, order_id, row).await
    }

    /// A page of the user's own orders, newest first; pages count from 1.
    pub async fn page(&self, user_id: i64, page: u32) -> Result<Vec<Order>, Error> {
        self.store.page_of_user(user_id, page).await
    }

    async fn judge(
        &self,
        user_id: i64,
        order_id: i64,
        row: Option<Order>,
    ) -> Result<Option<Order>, Error> {
        let row = row.map(|order| Row::as_seen_by(user_id, order));
        if let Some(Row::Order(order)) = row {
            return Ok(Some(order));
        }
        // Another user's order says nothing of this user's entry, which may have the same id after the counter was lost. A refusal
        // that is pending still is a row already: why, is written when it is resolved.
        let unnamed = match self.stream.standing(user_id, order_id).await? {
            Standing::Refused(refusal) => return Err(refusal),
            Standing::Pending => return Ok(None),
            Standing::Unnamed(unnamed) => unnamed,
        };
        // Only after the stream was asked: what is resolved there is a row before.
        let row = match row {
            None => match self.store.probe(order_id, user_id).await? {
                Probe::Order(order) => Row::as_seen_by(user_id, order),
                Probe::Nothing => return Err(self.missing(order_id, unnamed)),
            },
            Some(row) => row,
        };
        match row {
            Row::Order(order) => Ok(Some(order)),
            // Why, Redis does not know any more.
            Row::Refusal => Err(Error::OrderFailed),
            Row::OfAnother => Err(Error::OrderNotFound),
        }
    }

    /// What is said of an order whose id will never be a row of the database: while a call may be on its way that admits it to
    /// the stream, or the stream's consumers do not know yet what the others know, not that it will never exist. Its age is judged by
    /// the clock that lets such a call through, as Redis said it that moment; by the database's clock it is old.
    fn missing(&self, order_id: i64, stream: Unnamed) -> Error {
        let drawn = self.store.drawn_at(order_id);
        let unsure = TimeDelta::from_std(self.unsure).unwrap_or(TimeDelta::MAX);
        let day = TimeDelta::days(1);
        let age = stream.at - drawn;
        // No clock is a day ahead.
        let is_young = -day <= age && age < unsure;
        if stream.known_for < unsure || is_young {
            return Error::Unavailable(Cause::OrderUndecided);
        }
        if stream.known_for <= age && age < day {
            self.stream.count_unknown_after_loss();
        }
        Error::OrderNotFound
    }
}
