//! What becomes of an order after the purchase: paid, or cancelled with its stock returned. Both are
//! conditional updates of the status they start from, so of a payment and a cancellation that meet,
//! one wins and the other finds nothing to change.
//!
//! A cancellation is one transaction: orders 1 → 4, the stock raised by **the rows that were really
//! changed**, and a note of what Redis is to be told ([`OrderStore::untold`]). Two nodes that cancel
//! the same orders wait for each other at the rows; the second changes none and returns none. All of them
//! go by the primary key alone: two that reach a row by different indexes can deadlock.

use sqlx::FromRow;

use super::batch::list;
use super::ledger::until;
use super::{Ledger, OrderStore};
use crate::error::Error;

/// An order, as far as its cancellation goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromRow)]
pub struct Place {
    /// The order.
    pub order_id: i64,
    /// What it is an order of.
    pub voucher_id: i64,
    /// Whose place it holds.
    pub user_id: i64,
}

impl OrderStore {
    /// Unpaid orders made more than `seconds` ago by the database's clock, the oldest first, at most
    /// `limit`.
    pub async fn unpaid_since(&self, seconds: u64, limit: u32) -> Result<Vec<Place>, Error> {
        // create_time has whole seconds: `<` makes sure that none is taken early.
        let query = sqlx::query_as(
            "SELECT id AS order_id, CAST(voucher_id AS SIGNED) AS voucher_id, \
             CAST(user_id AS SIGNED) AS user_id FROM tb_voucher_order \
             WHERE status = 1 AND create_time < NOW() - INTERVAL ? SECOND \
             ORDER BY create_time LIMIT ?",
        )
        .bind(seconds)
        .bind(limit);
        Ok(self.db.bounded(query.fetch_all(&self.db.pool)).await?)
    }

    /// Cancels those of `orders` (all of one sale) that are unpaid, and returns their stock; says which.
    /// [`Error::OutcomeUnknown`] where the commit's reply was lost; every other error: nothing was done.
    pub async fn cancel(&self, voucher_id: i64, orders: &[i64]) -> Result<Vec<Place>, Error> {
        let Some(&first) = orders.first() else { return Ok(Vec::new()) };
        let mut ledger = self.begin().await?;
        let places = ledger.lock_unpaid(voucher_id, orders).await?;
        if places.is_empty() {
            ledger.rollback().await?;
            return Ok(places);
        }
        let cancelled = ledger.cancel(&places).await?;
        if cancelled != places.len() as u64 {
            // Dropped, the ledger is rolled back.
            let locked = places.len();
            return Err(Error::Internal(format!("{cancelled} of {locked} locked orders changed")));
        }
        ledger.note_returns(&places).await?;
        // The hot row last.
        if !ledger.increment_by(voucher_id, cancelled).await? {
            tracing::warn!(voucher_id, cancelled, "orders of a sale that is not there any more");
        }
        ledger.commit(first).await?;
        Ok(places)
    }

    /// Marks one of the user's orders as paid if it is unpaid; says whether it was. Errors as
    /// [`OrderStore::cancel`].
    pub async fn pay(&self, order_id: i64, user_id: i64) -> Result<bool, Error> {
        let mut ledger = self.begin().await?;
        let query = sqlx::query(
            "UPDATE tb_voucher_order FORCE INDEX (PRIMARY) SET status = 2, pay_time = CURRENT_TIMESTAMP \
             WHERE id = ? AND user_id = ? AND status = 1",
        )
        .bind(order_id)
        .bind(user_id);
        let paid = ledger.change(query).await? == 1;
        ledger.commit(order_id).await?;
        Ok(paid)
    }

    /// Cancelled orders of which Redis may not know yet, at most `limit`.
    pub async fn untold(&self, limit: u32) -> Result<Vec<Place>, Error> {
        let query = sqlx::query_as(
            "SELECT order_id, CAST(voucher_id AS SIGNED) AS voucher_id, \
             CAST(user_id AS SIGNED) AS user_id FROM tb_stock_return ORDER BY order_id LIMIT ?",
        )
        .bind(limit);
        Ok(self.db.bounded(query.fetch_all(&self.db.pool)).await?)
    }

    /// Redis has been told of these.
    pub async fn told(&self, places: &[Place]) -> Result<(), Error> {
        let ids = list(places.iter().map(|place| place.order_id));
        let sql = format!("DELETE FROM tb_stock_return WHERE order_id IN ({ids})");
        let query = sqlx::query(&sql).persistent(false);
        self.db.bounded(query.execute(&self.db.pool)).await?;
        Ok(())
    }
}

impl Ledger {
    /// Locks those of `orders` that are unpaid until this transaction ends, waiting for whoever is just
    /// changing one of them.
    async fn lock_unpaid(&mut self, voucher_id: i64, orders: &[i64]) -> Result<Vec<Place>, Error> {
        let ids = list(orders.iter().copied());
        let sql = format!(
            "SELECT id AS order_id, CAST(voucher_id AS SIGNED) AS voucher_id, \
             CAST(user_id AS SIGNED) AS user_id FROM tb_voucher_order FORCE INDEX (PRIMARY) \
             WHERE id IN ({ids}) AND voucher_id = {voucher_id} AND status = 1 FOR UPDATE"
        );
        let query = sqlx::query_as(&sql).persistent(false);
        Ok(until(self.deadline, query.fetch_all(&mut *self.connection)).await?)
    }

    /// Status 1 → 4; returns how many really were 1.
    async fn cancel(&mut self, places: &[Place]) -> Result<u64, Error> {
        let ids = list(places.iter().map(|place| place.order_id));
        let sql = format!(
            "UPDATE tb_voucher_order FORCE INDEX (PRIMARY) SET status = 4 \
             WHERE id IN ({ids}) AND status = 1"
        );
        self.change(sqlx::query(&sql).persistent(false)).await
    }

    async fn note_returns(&mut self, places: &[Place]) -> Result<(), Error> {
        let rows: Vec<String> = places
            .iter()
            .map(|Place { order_id, voucher_id, user_id }| {
                format!("({order_id},{voucher_id},{user_id})")
            })
            .collect();
        let rows = rows.join(",");
        let sql =
            format!("INSERT INTO tb_stock_return (order_id, voucher_id, user_id) VALUES {rows}");
        self.change(sqlx::query(&sql).persistent(false)).await.map(drop)
    }

    /// Puts `count` back; says whether there is such a sale.
    async fn increment_by(&mut self, voucher_id: i64, count: u64) -> Result<bool, Error> {
        let query =
            sqlx::query("UPDATE tb_seckill_voucher SET stock = stock + ? WHERE voucher_id = ?")
                .bind(count)
                .bind(voucher_id);
        Ok(self.change(query).await? > 0)
    }
}
