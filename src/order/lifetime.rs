//! Payment and cancellation of orders. No bank is called; the status transitions are real. The first request wins, on
//! any node: the database changes the status only from *unpaid*. Both are idempotent, so a lost reply does no harm.
//!
//! ```text
//! unpaid (1) ── pay ─────────────────────────▶ paid (2)        then pay: the order     cancel: ALREADY_PAID
//! unpaid (1) ── cancel, or too late to pay ──▶ cancelled (4)   then cancel: the order  pay: ORDER_CANCELLED
//! ```

use std::sync::Arc;
use std::time::Duration;

use backon::Retryable;

use super::lookup::OrderLookup;
use super::model::{Order, OrderStatus};
use super::process_locks::ProcessLocks;
use super::retry::{conflict_pauses, is_conflict};
use super::store::OrderStore;
use crate::error::{Cause, Error};
use crate::voucher::sales::SaleCache;

/// Longest wait of a user who cancels, for earlier cancellations in the same sale.
const TURN_LIMIT: Duration = Duration::from_secs(3);

/// Pays and cancels orders. Cheap to clone.
#[derive(Clone)]
pub struct Lifetime {
    pub(super) store: OrderStore,
    sales: Arc<SaleCache>,
    lookup: OrderLookup,
    /// One lock per sale: one user at a time cancels an order of it.
    turns: Arc<ProcessLocks>,
}

impl Lifetime {
    /// Pays and cancels orders of this store; `sales` learns of returned stock.
    pub fn new(store: OrderStore, sales: Arc<SaleCache>, lookup: OrderLookup) -> Self {
        Lifetime {
            store,
            sales,
            lookup,
            turns: Arc::default(),
        }
    }

    /// A copy that pays and cancels on the connections of another store.
    pub fn with_store(&self, store: OrderStore) -> Self {
        Lifetime {
            store,
            ..self.clone()
        }
    }

    /// Pays one of the user's orders; returns it as it is now.
    ///
    /// # Errors
    /// Those of [`OrderLookup::find`]; [`Error::OrderCancelled`], [`Error::OrderRefunded`]; [`Error::OutcomeUnknown`] if the
    /// order may have been paid, or is pending; [`Error::Conflict`] if others kept changing it.
    pub async fn pay(&self, order_id: i64, user_id: i64) -> Result<Order, Error> {
        let order = self.own_order(order_id, user_id).await?;
        if order.status() != Some(OrderStatus::Unpaid) {
            return require_paid(order);
        }
        let pay = || self.store.pay(order_id, user_id);
        let paid = pay
            .retry(conflict_pauses(Duration::MAX))
            .when(is_conflict)
            .await?;
        let order = self.own_order_after(paid, order_id, user_id).await?;
        // Paid by this call, whatever the status is now: the order may have been refunded before it was read again.
        if paid {
            return Ok(order);
        }
        require_paid(order)
    }

    /// Cancels one of the user's orders and returns its stock; returns the order as it is now.
    ///
    /// # Errors
    /// Those of [`OrderLookup::find`]; [`Error::AlreadyPaid`], [`Error::OrderRefunded`]; [`Error::OutcomeUnknown`] if the order
    /// may have been cancelled, or is pending; [`Error::Conflict`] if others kept changing it, or too many wait.
    pub async fn cancel(&self, order_id: i64, user_id: i64) -> Result<Order, Error> {
        let order = self.own_order(order_id, user_id).await?;
        if order.status() != Some(OrderStatus::Unpaid) {
            return require_cancelled(order);
        }
        // One cancellation in a sale at a time: the sale's row allows no more, and those that wait here hold no connection.
        let turn = self.turns.acquire(order.voucher_id.cast_unsigned());
        let turn = tokio::time::timeout(TURN_LIMIT, turn).await;
        let _turn = turn.map_err(|_| Error::Conflict)?;
        let ids = [order_id];
        let cancel = || self.cancel_all(order.voucher_id, &ids);
        let count = cancel
            .retry(conflict_pauses(Duration::MAX))
            .when(is_conflict)
            .await?;
        require_cancelled(self.own_order_after(count > 0, order_id, user_id).await?)
    }

    /// Cancels those of `orders` (all of one sale) that are unpaid, and returns their stock; returns how many were cancelled.
    pub(super) async fn cancel_all(&self, voucher_id: i64, orders: &[i64]) -> Result<usize, Error> {
        let cancelled = self.store.cancel(voucher_id, orders).await?;
        if cancelled > 0 {
            self.sales.stock_changed(voucher_id);
        }
        Ok(cancelled)
    }

    async fn own_order(&self, order_id: i64, user_id: i64) -> Result<Order, Error> {
        let order = self.lookup.find_current(user_id, order_id).await?;
        // A pending order cannot be changed; its owner can look up what becomes of it.
        order.ok_or(Error::OutcomeUnknown(Some(order_id)))
    }

    /// Reads the order again. If it was `changed`, an error of this read must not say that nothing was done.
    async fn own_order_after(
        &self,
        changed: bool,
        order_id: i64,
        user_id: i64,
    ) -> Result<Order, Error> {
        let order = self.own_order(order_id, user_id).await;
        if changed {
            order.map_err(|_| Error::OutcomeUnknown(Some(order_id)))
        } else {
            order
        }
    }
}

fn require_paid(order: Order) -> Result<Order, Error> {
    match order.status() {
        Some(OrderStatus::Paid | OrderStatus::Used) => Ok(order),
        other => Err(refusal(other)),
    }
}

fn require_cancelled(order: Order) -> Result<Order, Error> {
    match order.status() {
        Some(OrderStatus::Cancelled) => Ok(order),
        other => Err(refusal(other)),
    }
}

/// Why an order could not be changed, by the status it has.
fn refusal(status: Option<OrderStatus>) -> Error {
    match status {
        Some(OrderStatus::Paid | OrderStatus::Used) => Error::AlreadyPaid,
        Some(OrderStatus::Cancelled) => Error::OrderCancelled,
        Some(OrderStatus::Refunding | OrderStatus::Refunded) => Error::OrderRefunded,
        // Unpaid again, or an unknown status: the tables are being edited by hand.
        Some(OrderStatus::Unpaid) | None => Error::Unavailable(Cause::OrderStatusChanged),
    }
}
