//! What a sale on the stream is counted from: pages of its buyers, and, while its row is locked, which of its pending orders
//! are rows, and what its cancelled orders gave back.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use backon::{ConstantBuilder, Retryable};

use super::orders::{IDS, OrderRow, OrderStore, SELECT_ROWS, id_list};
use super::transaction::{OrderTransaction, stock_sql};
use crate::connection::row::{from_row, readable};
use crate::connection::server_error::{Meaning, meaning_of};
use crate::error::Error;
use crate::order::model::NewOrder;

/// A sale that is open, or will be.
#[derive(Clone, Debug)]
#[allow(missing_docs)] // columns under their names
pub struct OpenSale {
    pub voucher_id: i64,
    pub strategy: String,
    /// `None` where a Java node published it.
    pub issued: Option<i64>,
    pub stock: i64,
    /// When it ends, seconds since 1970.
    pub ends: i64,
    /// Whether cancelled orders are in the outbox.
    pub has_returns: i64,
}

from_row! { OpenSale: voucher_id, strategy, issued, stock, ends, has_returns }

/// A locked row is tried three times in all: a commit that is under way is over by then.
const LOCK_TRIES: ConstantBuilder = ConstantBuilder::new()
    .with_delay(Duration::from_millis(20))
    .with_max_times(2);

impl OrderStore {
    /// Up to `limit` users above `after`, in rising order, who have an order that the unique index guards. A page costs
    /// the same wherever it begins: the bounds make it a range of that index. With `voucher_id = ?` MariaDB prefers at
    /// times to look the sale up and to go through its buyers from the first.
    pub async fn buyers_after(
        &self,
        voucher_id: i64,
        after: i64,
        limit: u32,
    ) -> Result<Vec<i64>, Error> {
        let query = sqlx::query_scalar(
            "SELECT CAST(buyer AS SIGNED) FROM tb_voucher_order \
             WHERE voucher_id >= ? AND voucher_id <= ? AND buyer > ? \
             ORDER BY voucher_id, buyer LIMIT ?",
        )
        .bind(voucher_id)
        .bind(voucher_id)
        .bind(after)
        .bind(limit);
        Ok(self.db.read(async |c| query.fetch_all(c).await).await?)
    }

    /// The sales that are open, or will be; only those of `among`, if it is given. A row that cannot be read is left out.
    pub async fn open_sales(&self, among: Option<Vec<i64>>) -> Result<Vec<OpenSale>, Error> {
        let among = among.map_or(String::new(), |sales| {
            format!(" AND voucher_id IN ({})", id_list(sales))
        });
        let sql = format!(
            "SELECT CAST(voucher_id AS SIGNED) AS voucher_id, strategy, \
             CAST(issued AS SIGNED) AS issued, CAST(stock AS SIGNED) AS stock, \
             CAST(UNIX_TIMESTAMP(end_time) AS SIGNED) AS ends, \
             CAST(voucher_id IN (SELECT voucher_id FROM tb_stock_return) AS SIGNED) AS has_returns \
             FROM tb_seckill_voucher WHERE end_time > CURRENT_TIMESTAMP{among}"
        );
        let query = sqlx::query(&sql);
        let rows = self.db.read(async |c| query.fetch_all(c).await).await?;
        Ok(readable("tb_seckill_voucher", &rows))
    }

    /// Whether the sale's row can be locked; waits for no transaction but those that commit at this moment.
    ///
    /// # Errors
    /// [`Error::Conflict`] where another transaction holds it.
    pub async fn require_unlocked(&self, voucher_id: i64) -> Result<(), Error> {
        // Outside a transaction the lock ends with the statement.
        let lock = format!("{} FOR UPDATE NOWAIT", stock_sql(voucher_id));
        let locking = || {
            let query = sqlx::query(&lock).persistent(false);
            self.db.write(async |c| query.execute(c).await)
        };
        locking
            .retry(LOCK_TRIES)
            .when(|error| meaning_of(error) == Meaning::Conflict)
            .await?;
        Ok(())
    }

    /// Records that a sale which a Java node published is sold on the stream, and how much was issued: the stock, and the
    /// orders that are not cancelled. Says whether it was not recorded before.
    pub async fn adopt_sale(&self, voucher_id: i64) -> Result<bool, Error> {
        let mut transaction = self.begin().await?;
        // The row first: its lock waits for transactions that changed the stock and have not committed their order, so
        // that the next statement sees stock and orders of one moment.
        transaction.lock_stock(voucher_id).await?;
        let adopt = format!(
            "UPDATE tb_seckill_voucher SET strategy = 'stream', issued = stock + (SELECT COUNT(*) \
             FROM tb_voucher_order WHERE voucher_id = {voucher_id} AND status <> 4) \
             WHERE voucher_id = {voucher_id} AND issued IS NULL"
        );
        let adopted = transaction.change(&adopt).await? == 1;
        transaction.commit_once(voucher_id).await?;
        Ok(adopted)
    }
}

impl OrderTransaction {
    /// The rows under the ids of `orders`, as this transaction sees them, by id.
    pub async fn rows_of(&mut self, orders: &[NewOrder]) -> Result<HashMap<i64, OrderRow>, Error> {
        let mut found = HashMap::new();
        for orders in orders.chunks(IDS) {
            let ids = id_list(orders.iter().map(|order| order.id));
            let rows: Vec<OrderRow> = self.rows(&format!("{SELECT_ROWS} id IN ({ids})")).await?;
            found.extend(rows.into_iter().map(|row| (row.id, row)));
        }
        Ok(found)
    }

    /// Cancelled orders of a sale that are in the outbox, and the user of each.
    pub async fn returns_of(&mut self, voucher_id: i64) -> Result<HashMap<i64, i64>, Error> {
        let sql = format!(
            "SELECT order_id, CAST(user_id AS SIGNED) FROM tb_stock_return \
             WHERE voucher_id = {voucher_id} LIMIT {IDS}"
        );
        Ok(self.rows(&sql).await?.into_iter().collect())
    }

    /// Those of `users` who have no order of this sale.
    pub async fn users_without_order(
        &mut self,
        voucher_id: i64,
        mut users: Vec<i64>,
    ) -> Result<Vec<i64>, Error> {
        if users.is_empty() {
            return Ok(users);
        }
        let sql = format!(
            "SELECT CAST(buyer AS SIGNED) FROM tb_voucher_order \
             WHERE voucher_id = {voucher_id} AND buyer IN ({})",
            id_list(&users)
        );
        let buyers: Vec<(i64,)> = self.rows(&sql).await?;
        let buyers: HashSet<i64> = buyers.into_iter().map(|(buyer,)| buyer).collect();
        users.retain(|user| !buyers.contains(user));
        Ok(users)
    }
}
