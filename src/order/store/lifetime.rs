//! What happens to an order after the purchase: payment, or cancellation with its stock returned. Both are
//! conditional updates of the status that they start from, so of a payment and a cancellation at the same moment,
//! one changes the row and the other finds nothing to change.
//!
//! A cancellation is one transaction: status 1 → 4, the stock raised by **the rows that were really changed**, and a
//! row per order in the transactional outbox `tb_stock_return`, which says what Redis has still to learn
//! ([`super::count`]). Two nodes that cancel the same orders wait for each other at the rows; the
//! second changes none and returns no stock. All statements use the primary key alone: two that reach a row by
//! different indexes can deadlock.

use super::orders::{OrderStore, id_list};
use crate::connection::row::from_row;
use crate::error::Error;
use crate::id::SEQUENCE_BITS;

/// An order's ids: what a cancellation, and the return of its stock, need to know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // columns under their names
pub struct OrderKey {
    pub order_id: i64,
    pub voucher_id: i64,
    pub user_id: i64,
}

from_row! { OrderKey: order_id, voucher_id, user_id }

impl OrderStore {
    /// Unpaid orders that are older than `seconds` by the database's clock (`create_time`) and by this node's (the seconds
    /// in the id), at most `limit`. A clock that was stepped back shows orders in the future: for those, the other clock
    /// decides alone; where both do, nothing can be said, and the order is left out. So no step of one clock expires an
    /// order early, and none keeps one for longer than its age shows by the other.
    pub async fn unpaid_since(&self, seconds: u64, limit: u32) -> Result<Vec<OrderKey>, Error> {
        let now = self.local_seconds();
        // Whole seconds on both sides: `<` makes sure that none is taken early.
        let old = now
            .saturating_sub(seconds.try_into().unwrap_or(i64::MAX))
            .max(0)
            << SEQUENCE_BITS;
        let future = (now + 1) << SEQUENCE_BITS;
        let query = sqlx::query_as(
            "SELECT id AS order_id, CAST(voucher_id AS SIGNED) AS voucher_id, \
             CAST(user_id AS SIGNED) AS user_id FROM tb_voucher_order \
             WHERE status = 1 AND (create_time < NOW() - INTERVAL ? SECOND OR create_time > NOW()) \
             AND (id < ? OR id >= ?) AND NOT (create_time > NOW() AND id >= ?) \
             ORDER BY create_time LIMIT ?",
        )
        .bind(seconds)
        .bind(old)
        .bind(future)
        .bind(future)
        .bind(limit);
        Ok(self.db.read(async |c| query.fetch_all(c).await).await?)
    }

    /// Cancels those of `orders` (all of one sale) that are unpaid, and returns their stock; returns how many those are.
    ///
    /// # Errors
    /// [`Error::OutcomeUnknown`] where the commit's reply was lost; every other error: nothing was done.
    pub async fn cancel(&self, voucher_id: i64, orders: &[i64]) -> Result<usize, Error> {
        let Some(&first) = orders.first() else {
            return Ok(0);
        };
        let mut transaction = self.begin().await?;
        // Waits for any other transaction that is changing one of them.
        let lock = format!(
            "SELECT id AS order_id, CAST(voucher_id AS SIGNED) AS voucher_id, \
             CAST(user_id AS SIGNED) AS user_id FROM tb_voucher_order FORCE INDEX (PRIMARY) \
             WHERE id IN ({}) AND voucher_id = {voucher_id} AND status = 1 FOR UPDATE",
            id_list(orders.iter().copied())
        );
        let unpaid: Vec<OrderKey> = transaction.rows(&lock).await?;
        if unpaid.is_empty() {
            transaction.rollback().await?;
            return Ok(0);
        }
        let cancel = format!(
            "UPDATE tb_voucher_order FORCE INDEX (PRIMARY) SET status = 4 \
             WHERE id IN ({}) AND status = 1",
            id_list(unpaid.iter().map(|order| order.order_id))
        );
        let cancelled = transaction.change(&cancel).await?;
        if cancelled != unpaid.len() as u64 {
            // Dropped, the transaction is rolled back.
            let locked = unpaid.len();
            return Err(Error::Internal(format!(
                "{cancelled} of {locked} locked orders changed"
            )));
        }
        let row = |order: &OrderKey| format!("({},{voucher_id},{})", order.order_id, order.user_id);
        let rows = unpaid.iter().map(row).collect::<Vec<_>>().join(",");
        let outbox =
            format!("INSERT INTO tb_stock_return (order_id, voucher_id, user_id) VALUES {rows}");
        transaction.change(&outbox).await?;
        // The hot row last.
        let raise = format!(
            "UPDATE tb_seckill_voucher SET stock = stock + {cancelled} WHERE voucher_id = {voucher_id}"
        );
        if transaction.change(&raise).await? == 0 {
            tracing::warn!(
                voucher_id,
                cancelled,
                "cancelled orders of a sale that does not exist any more"
            );
        }
        transaction.commit_once(first).await?;
        Ok(unpaid.len())
    }

    /// Marks one of the user's orders as paid if it is unpaid; says whether it was. The errors are those of
    /// [`OrderStore::cancel`].
    pub async fn pay(&self, order_id: i64, user_id: i64) -> Result<bool, Error> {
        let mut transaction = self.begin().await?;
        let pay = format!(
            "UPDATE tb_voucher_order FORCE INDEX (PRIMARY) SET status = 2, pay_time = CURRENT_TIMESTAMP \
             WHERE id = {order_id} AND user_id = {user_id} AND status = 1"
        );
        let paid = transaction.change(&pay).await? == 1;
        transaction.commit_once(order_id).await?;
        Ok(paid)
    }

    /// Removes the rows of the outbox that no sale on the stream waits for: there is no counter to set.
    pub async fn delete_idle_returns(&self) -> Result<(), Error> {
        let query = sqlx::query(
            "DELETE FROM tb_stock_return WHERE voucher_id NOT IN (SELECT voucher_id FROM tb_seckill_voucher \
             WHERE strategy = 'stream' AND end_time > CURRENT_TIMESTAMP)",
        );
        self.db.write(async |c| query.execute(c).await).await?;
        Ok(())
    }

    /// Removes delivered rows from the outbox.
    pub async fn delete_returns(&self, delivered: &[OrderKey]) -> Result<(), Error> {
        let ids = id_list(delivered.iter().map(|order| order.order_id));
        let sql = format!("DELETE FROM tb_stock_return WHERE order_id IN ({ids})");
        let query = sqlx::query(&sql).persistent(false);
        self.db.write(async |c| query.execute(c).await).await?;
        Ok(())
    }
}
