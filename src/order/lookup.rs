//! Look-up of an order by its id, on every strategy: its row is read, then the stream is asked, then the row is read once
//! more, for certain. **"No such order" is said here and nowhere else**, and then there will never be one.

use std::time::Duration;

use chrono::TimeDelta;

use super::model::Order;
use super::store::OrderStore;
use super::strategy::stream::{OrderStream, Standing, Unnamed};
use crate::error::{Cause, Error};

/// Looks orders up for their buyers. Cheap to clone.
#[derive(Clone)]
pub struct OrderLookup {
    store: OrderStore,
    stream: OrderStream,
    /// For this long after its id was drawn, an order may be on its way to the stream, unseen.
    unsure: Duration,
}

/// What a row under the id says of the user's order.
enum Row {
    Order(Order),
    Refusal,
    /// Another user's row. The primary key allows no second row under this id.
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
    /// The refusal if the order was refused; [`Error::OrderNotFound`], and then it will never exist;
    /// [`Error::Unavailable`], also if the order is not found but may still come, soon after its id was drawn or after Redis
    /// lost data.
    pub async fn find(&self, user_id: i64, order_id: i64) -> Result<Option<Order>, Error> {
        let row = self.store.find(order_id).await?;
        self.judge(user_id, order_id, row).await
    }

    /// As [`OrderLookup::find`], read from a server that takes writes: during a failover, another server may show the order as
    /// it was before.
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
        // The stream is asked even if the row is another user's: this user's entry may have the same id, after the id counter
        // was lost. And even if the row is a refusal: Redis has the reason once the entry is resolved, which is pending until
        // then.
        let unnamed = match self.stream.standing(user_id, order_id).await? {
            Standing::Refused(refusal) => return Err(refusal),
            Standing::Pending => return Ok(None),
            Standing::Unnamed(unnamed) => unnamed,
        };
        // Only after the stream was asked: an entry is decided by a row before it is resolved there.
        let row = match row {
            None => match self.store.probe(order_id, user_id).await? {
                Some(order) => Row::as_seen_by(user_id, order),
                None => return Err(self.missing(order_id, unnamed)),
            },
            Some(row) => row,
        };
        match row {
            Row::Order(order) => Ok(Some(order)),
            // Redis no longer has the reason.
            Row::Refusal => Err(Error::OrderFailed),
            Row::OfAnother => Err(Error::OrderNotFound),
        }
    }

    /// The answer for an order without a row, which the stream does not name and no purchase can commit any more. It is not
    /// "not found" while an entry may still come: soon after the id was drawn, as a call that admits the order may be on its
    /// way; and soon after the stream's data began, as other instances may still use the data before. The id's age is judged
    /// by Redis' clock, which also decides whether such a call runs; the probe has judged it by the database's clock.
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
