//! What happens to an order after the purchase: payment, or cancellation with its stock returned. Both are
//! conditional updates of the status that they start from, so of a payment and a cancellation at the same moment,
//! one changes the row and the other finds nothing to change.
//!
//! A cancellation is one transaction: status 1 → 4, the stock raised by **the rows that were really changed**, and, where a
//! counter waits for it, a row per order in the transactional outbox `tb_stock_return`, which says what Redis has still to
//! learn ([`super::count`]). Two nodes that cancel the same orders wait for each other at the rows; the
//! second changes none and returns no stock. All statements use the primary key alone: two that reach a row by
//! different indexes can deadlock.

use std::collections::VecDeque;

use super::orders::{IDS, OrderStore, id_list};
use crate::connection::row::from_row;
use crate::error::Error;
use crate::id::SEQUENCE_BITS;

/// An order, and the sale to which its cancellation returns stock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // columns under their names
pub struct OrderKey {
    pub order_id: i64,
    pub voucher_id: i64,
}

from_row! { OrderKey: order_id, voucher_id }

/// The sales whose orders are searched.
pub enum Among<'a> {
    /// All but these.
    AllBut(&'a VecDeque<i64>),
    /// This one.
    Only(i64),
}

impl Among<'_> {
    fn condition(&self) -> String {
        match self {
            // No sale has the voucher 0. Orders without a voucher are left out, too.
            Among::AllBut(sales) => {
                format!("voucher_id NOT IN ({})", id_list(sales.iter().chain([&0])))
            }
            Among::Only(sale) => format!("voucher_id = {sale}"),
        }
    }
}

impl OrderStore {
    /// Unpaid orders that are older than `seconds` by the database's clock (`create_time`) and by this node's (the seconds
    /// in the id), at most `limit`. An order whose `create_time` is in the future, because the database's clock was stepped
    /// back, is judged by its id alone. An order whose id is in the future waits until that time has come: the seconds in an id
    /// are the latest that any clock said, perhaps the database's own, which must not decide alone. So no step of one clock
    /// expires an order early.
    pub async fn unpaid_since(
        &self,
        seconds: u32,
        limit: u32,
        among: Among<'_>,
    ) -> Result<Vec<OrderKey>, Error> {
        // Whole seconds on both sides: `<` makes sure that none is taken early.
        let ids_before = (self.local_seconds() - i64::from(seconds)).max(0) << SEQUENCE_BITS;
        let sql = format!(
            "SELECT CAST(id AS SIGNED) AS order_id, CAST(voucher_id AS SIGNED) AS voucher_id FROM tb_voucher_order \
             WHERE status = 1 AND {} AND (create_time < NOW() - INTERVAL ? SECOND OR create_time > NOW()) \
             AND id < ? ORDER BY create_time LIMIT ?",
            among.condition()
        );
        let query = sqlx::query_as(&sql)
            .persistent(false)
            .bind(seconds)
            .bind(ids_before)
            .bind(limit);
        Ok(self.db.read(async |c| query.fetch_all(c).await).await?)
    }

    /// Cancels those of `orders` (all of one sale) that are unpaid, and returns their stock; returns how many those are.
    ///
    /// # Errors
    /// [`Error::OutcomeUnknown`] if the commit's reply was lost; after every other error, nothing was done.
    pub async fn cancel(&self, voucher_id: i64, orders: &[i64]) -> Result<usize, Error> {
        let Some(&first) = orders.first() else {
            return Ok(0);
        };
        let mut transaction = self.begin().await?;
        // Waits for any other transaction that is changing one of them.
        let lock = format!(
            "SELECT CAST(id AS SIGNED) FROM tb_voucher_order FORCE INDEX (PRIMARY) \
             WHERE id IN ({}) AND voucher_id = {voucher_id} AND status = 1 FOR UPDATE",
            id_list(orders)
        );
        let unpaid: Vec<(i64,)> = transaction.rows(&lock).await?;
        if unpaid.is_empty() {
            transaction.rollback().await?;
            return Ok(0);
        }
        let cancelled = unpaid.len();
        let ids = id_list(unpaid.into_iter().map(|(id,)| id));
        // A row that is in the outbox already stays, and is delivered as well. The hot row last.
        let changes = format!(
            "UPDATE tb_voucher_order FORCE INDEX (PRIMARY) SET status = 4 \
             WHERE id IN ({ids}) AND status = 1; \
             INSERT INTO tb_stock_return (order_id, voucher_id, user_id) \
             SELECT o.id, o.voucher_id, o.user_id FROM tb_voucher_order o \
             JOIN tb_seckill_voucher s ON s.voucher_id = o.voucher_id \
             AND (s.strategy = 'stream' OR s.issued IS NULL) AND s.end_time > CURRENT_TIMESTAMP \
             WHERE o.id IN ({ids}) ON DUPLICATE KEY UPDATE order_id = o.id; \
             UPDATE tb_seckill_voucher SET stock = stock + {cancelled} WHERE voucher_id = {voucher_id}"
        );
        let [updated, _, raised] = transaction.run(&changes).await?;
        if updated.changed != cancelled as u64 {
            // Dropped, the transaction is rolled back.
            let detail = format!("{} of {cancelled} locked orders changed", updated.changed);
            return Err(Error::Internal(detail));
        }
        if raised.changed == 0 {
            tracing::warn!(
                voucher_id,
                cancelled,
                "cancelled orders of a sale that is gone"
            );
        }
        transaction.commit_once(first).await?;
        Ok(cancelled)
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

    /// Removes the rows of the outbox that no sale on the stream waits for: there is no counter to set. They are read first and
    /// deleted by their ids: a DELETE with a subquery would lock the rows of the sales that it reads, and purchases would wait
    /// for these.
    pub async fn delete_idle_returns(&self) -> Result<(), Error> {
        let sql = format!(
            "SELECT r.order_id FROM tb_stock_return r LEFT JOIN tb_seckill_voucher s \
             ON s.voucher_id = r.voucher_id AND s.strategy = 'stream' \
             AND s.end_time > CURRENT_TIMESTAMP \
             WHERE s.voucher_id IS NULL ORDER BY r.order_id LIMIT {IDS}"
        );
        let query = sqlx::query_scalar(&sql);
        let idle: Vec<i64> = self.db.read(async |c| query.fetch_all(c).await).await?;
        self.delete_returns(idle).await
    }

    /// Removes rows of these orders from the outbox.
    pub async fn delete_returns(&self, orders: Vec<i64>) -> Result<(), Error> {
        if orders.is_empty() {
            return Ok(());
        }
        let ids = id_list(orders);
        let sql = format!("DELETE FROM tb_stock_return WHERE order_id IN ({ids})");
        let query = sqlx::query(&sql).persistent(false);
        self.db.write(async |c| query.execute(c).await).await?;
        Ok(())
    }
}
