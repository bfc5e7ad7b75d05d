//! What the caller does with an order: pay it, or cancel it and give its stock back. No bank is called;
//! the transitions are real. Whoever comes first wins, on whatever node: the database changes the
//! status only from *unpaid*. Asked again, each answers as the first time, so a lost reply is no loss.
//!
//! ```text
//!            pay                           paid (2)       pay: the order      cancel: ALREADY_PAID
//! unpaid (1) cancel, or too late to pay ─▶ cancelled (4)  cancel: the order   pay: ORDER_CANCELLED
//! ```

use std::time::Duration;

use super::model::{Order, Status};
use super::store::OrderStore;
use super::store::lifetime::Place;
use crate::error::Error;
use crate::voucher::news::News;

/// How often a change is tried in all when it meets deadlocks.
const ATTEMPTS: u32 = 4;

/// Longest pause before a try, milliseconds; the pause is random, so that rivals part.
const PAUSE_MS: u64 = 20;

/// Pays and cancels orders. Cheap to clone.
#[derive(Clone)]
pub struct Lifetime {
    store: OrderStore,
    news: News,
}

impl Lifetime {
    /// Orders of this store; `news` tells all nodes of stock that came back.
    pub fn new(store: OrderStore, news: News) -> Self {
        Lifetime { store, news }
    }

    /// Pays one of the user's orders; returns it as it is now.
    pub async fn pay(&self, order_id: i64, user_id: i64) -> Result<Order, Error> {
        let paid = settle(|| self.store.pay(order_id, user_id)).await?;
        let order = self.own_after(paid, order_id, user_id).await?;
        match order.status() {
            Some(Status::Paid | Status::Used) => Ok(order),
            // Ours, and refunded before we looked again.
            _ if paid => Ok(order),
            other => Err(instead_of(other)),
        }
    }

    /// Cancels one of the user's orders and returns its stock; returns the order as it is now.
    pub async fn cancel(&self, order_id: i64, user_id: i64) -> Result<Order, Error> {
        let order = self.own(order_id, user_id).await?;
        if order.status() != Some(Status::Unpaid) {
            return cancelled(order);
        }
        let (sale, ids) = (order.voucher_id, [order_id]);
        let count = settle(|| self.cancel_all(sale, &ids)).await?;
        cancelled(self.own_after(count > 0, order_id, user_id).await?)
    }

    /// Cancels those of `orders` (all of one sale) that are unpaid, returns their stock, and has every
    /// node and the gate in Redis know; says how many.
    pub(super) async fn cancel_all(&self, voucher_id: i64, orders: &[i64]) -> Result<usize, Error> {
        let places = self.store.cancel(voucher_id, orders).await?;
        if !places.is_empty()
            && let Err(fault) = self.tell(&places).await
        {
            // The note of it stands in the database: expiry tells it later.
            tracing::warn!(voucher_id, %fault, "Redis does not know yet of stock that came back");
        }
        Ok(places.len())
    }

    /// Tells what is noted as untold, at most `limit`; says how many there were.
    pub(super) async fn tell_untold(&self, limit: u32) -> Result<usize, Error> {
        let untold = self.store.untold(limit).await?;
        let mut by_sale = untold.clone();
        by_sale.sort_by_key(|place| place.voucher_id);
        for places in by_sale.chunk_by(|a, b| a.voucher_id == b.voucher_id) {
            self.tell(places).await?;
        }
        Ok(untold.len())
    }

    /// Tells of cancelled orders of one sale. Only then is the note removed, so a crash in between has
    /// it told twice, which is harmless, and never not at all.
    async fn tell(&self, places: &[Place]) -> Result<(), Error> {
        let Some(first) = places.first() else { return Ok(()) };
        let pairs = places.iter().map(|place| (place.order_id, place.user_id));
        self.news.stock_returned(first.voucher_id, pairs).await?;
        self.store.told(places).await
    }

    /// The orders.
    pub(super) fn store(&self) -> &OrderStore {
        &self.store
    }

    async fn own(&self, order_id: i64, user_id: i64) -> Result<Order, Error> {
        let order = self.store.find(order_id).await?;
        order.filter(|order| order.user_id == user_id).ok_or(Error::OrderNotFound)
    }

    /// The order after it was, or was not, changed: where it was, no failure may say that nothing was.
    async fn own_after(&self, changed: bool, order_id: i64, user_id: i64) -> Result<Order, Error> {
        let order = self.own(order_id, user_id).await;
        if changed { order.map_err(|_| Error::OutcomeUnknown(Some(order_id))) } else { order }
    }
}

fn cancelled(order: Order) -> Result<Order, Error> {
    match order.status() {
        Some(Status::Cancelled) => Ok(order),
        other => Err(instead_of(other)),
    }
}

/// Runs `change` until it does not lose to a purchase or to another change. After a conflict nothing was
/// done; what remains of them is answered as that.
async fn settle<T, F>(change: impl Fn() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    for _ in 1..ATTEMPTS {
        match change().await {
            Err(Error::Conflict) => {}
            settled => return settled,
        }
        let pause = rand::random_range(1..=PAUSE_MS);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
    change().await
}

/// Why an order could not be changed, by the status it has.
fn instead_of(status: Option<Status>) -> Error {
    match status {
        Some(Status::Paid | Status::Used) => Error::AlreadyPaid,
        Some(Status::Cancelled) => Error::OrderCancelled,
        Some(Status::Refunding | Status::Refunded) => Error::OrderRefunded,
        // Unpaid again, or a status nobody knows: somebody edits the tables by hand.
        Some(Status::Unpaid) | None => {
            Error::Unavailable("the order, whose status changed meanwhile,")
        }
    }
}
