//! What the stream's stock counters and claims are rebuilt from: pages of a sale's buyers, and its stock with what must
//! be known of the same moment.

use std::collections::HashSet;

use super::orders::{OrderStore, id_list};
use crate::connection::row::row;
use crate::error::Error;

row! {
    /// A sale that is open, or will be.
    #[derive(Debug)]
    pub struct OpenSale {
        /// `tb_voucher.id`.
        pub voucher_id: i64,
        /// How it sells.
        pub strategy: String,
        /// Put on sale in all; `None` where a Java node published it.
        pub issued: Option<i64>,
        /// Left to sell.
        pub stock: i64,
    }
}

/// A sale at one moment.
#[derive(Debug, Default)]
pub struct SaleSnapshot {
    /// Left to sell.
    pub stock: i64,
    /// Those of the orders asked for that are in the database, in any status.
    pub committed: HashSet<i64>,
    /// Cancelled orders whose stock is in `stock`, and which are still in the outbox: Redis may not know of them.
    pub pending_returns: Vec<PendingReturn>,
}

/// A row of the outbox.
#[derive(Clone, Copy, Debug)]
pub struct PendingReturn {
    /// The cancelled order.
    pub order_id: i64,
    /// Whose it was.
    pub user_id: i64,
    /// Whether that user has another order of this sale by now.
    pub has_order: bool,
}

/// What a row of the snapshot is; see [`OrderStore::sale_snapshot`].
const STOCK: i64 = 0;
const COMMITTED: i64 = 1;

/// Rows of the outbox that a snapshot contains at most.
const RETURNS: usize = 10_000;

impl OrderStore {
    /// Up to `limit` users above `after`, in rising order, who have an order that the unique index guards. Read from
    /// that index alone, so a page costs the same wherever it begins.
    pub async fn buyers_after(
        &self,
        voucher_id: i64,
        after: i64,
        limit: u32,
    ) -> Result<Vec<i64>, Error> {
        let query = sqlx::query_scalar(
            "SELECT CAST(buyer AS SIGNED) FROM tb_voucher_order \
             WHERE voucher_id = ? AND buyer > ? ORDER BY buyer LIMIT ?",
        )
        .bind(voucher_id)
        .bind(after)
        .bind(limit);
        Ok(self.db.bounded(query.fetch_all(&self.db.pool)).await?)
    }

    /// The sale's stock, which of these of its orders are committed, and the returns that Redis may not know: in one
    /// statement, and so at one moment. `None` where there is no such sale.
    ///
    /// # Errors
    /// [`Error::Unavailable`], also where too many returns are pending: they are delivered soon.
    pub async fn sale_snapshot(
        &self,
        voucher_id: i64,
        orders: impl IntoIterator<Item = i64>,
    ) -> Result<Option<SaleSnapshot>, Error> {
        let ids = id_list(orders);
        let limit = RETURNS + 1;
        let sql = format!(
            "SELECT {STOCK} AS kind, CAST(stock AS SIGNED) AS id, 0 AS user_id, 0 AS has_order \
             FROM tb_seckill_voucher WHERE voucher_id = {voucher_id} \
             UNION ALL SELECT {COMMITTED}, id, 0, 0 FROM tb_voucher_order \
             WHERE id IN ({ids}) AND voucher_id = {voucher_id} \
             UNION ALL (SELECT 2, r.order_id, CAST(r.user_id AS SIGNED), \
             EXISTS (SELECT 1 FROM tb_voucher_order o \
             WHERE o.voucher_id = r.voucher_id AND o.buyer = r.user_id) \
             FROM tb_stock_return r WHERE r.voucher_id = {voucher_id} LIMIT {limit})"
        );
        let query = sqlx::query_as(&sql).persistent(false).fetch_all(&self.db.pool);
        let rows: Vec<(i64, i64, i64, i64)> = self.db.bounded(query).await?;
        let mut snapshot = None;
        for (kind, id, user_id, has_order) in rows {
            let sale: &mut SaleSnapshot = snapshot.get_or_insert_default();
            match kind {
                STOCK => sale.stock = id,
                COMMITTED => {
                    sale.committed.insert(id);
                }
                _ => sale.pending_returns.push(PendingReturn {
                    order_id: id,
                    user_id,
                    has_order: has_order != 0,
                }),
            }
        }
        match snapshot {
            Some(sale) if sale.pending_returns.len() > RETURNS => {
                Err(Error::Unavailable("the returns of cancelled orders"))
            }
            snapshot => Ok(snapshot),
        }
    }

    /// The sales that are open, or will be, and whose id modulo `count` is `number`.
    pub async fn open_sales(&self, (count, number): (u8, u8)) -> Result<Vec<OpenSale>, Error> {
        let query = sqlx::query_as(
            "SELECT CAST(voucher_id AS SIGNED) AS voucher_id, strategy, \
             CAST(issued AS SIGNED) AS issued, CAST(stock AS SIGNED) AS stock \
             FROM tb_seckill_voucher WHERE end_time > CURRENT_TIMESTAMP AND MOD(voucher_id, ?) = ?",
        )
        .bind(count)
        .bind(number);
        Ok(self.db.bounded(query.fetch_all(&self.db.pool)).await?)
    }

    /// Records that a sale which a Java node published is sold on the stream, and what was issued: what is left, and the
    /// orders that are not cancelled. Says whether it was not recorded before.
    pub async fn adopt_sale(&self, voucher_id: i64) -> Result<bool, Error> {
        let mut transaction = self.begin().await?;
        // The row first: whoever has changed the stock and not yet committed the order is waited for, so that the stock
        // and the orders that the next statement sees are of one moment.
        transaction.lock_stock(voucher_id).await?;
        let adopt = sqlx::query(
            "UPDATE tb_seckill_voucher SET strategy = 'stream', issued = stock + (SELECT COUNT(*) \
             FROM tb_voucher_order WHERE voucher_id = ? AND status <> 4) \
             WHERE voucher_id = ? AND issued IS NULL",
        )
        .bind(voucher_id)
        .bind(voucher_id);
        let adopted = transaction.change(adopt).await? == 1;
        transaction.commit_once(voucher_id).await?;
        Ok(adopted)
    }
}
