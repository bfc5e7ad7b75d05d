//! What a sale on the stream is counted from: pages of its buyers, and, while its row is locked, which of its pending orders
//! are rows, and what its cancelled orders gave back.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use backon::{ConstantBuilder, Retryable};

use super::lifetime::{OrderKey, RETURNS};
use super::orders::{OrderStore, id_list};
use super::transaction::{OrderTransaction, Reply};
use crate::connection::row::{from_row, readable};
use crate::error::Error;
use crate::order::model::{Buyer, NewOrder};

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

/// Ids in one statement.
const IDS: usize = 10_000;

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
        let mut sql = String::from(
            "SELECT CAST(voucher_id AS SIGNED) AS voucher_id, strategy, \
             CAST(issued AS SIGNED) AS issued, CAST(stock AS SIGNED) AS stock, \
             CAST(UNIX_TIMESTAMP(end_time) AS SIGNED) AS ends, \
             CAST(voucher_id IN (SELECT voucher_id FROM tb_stock_return) AS SIGNED) AS has_returns \
             FROM tb_seckill_voucher WHERE end_time > CURRENT_TIMESTAMP",
        );
        if let Some(among) = among {
            sql.push_str(&format!(" AND voucher_id IN ({})", id_list(among)));
        }
        let rows = self
            .db
            .read(async |c| sqlx::query(&sql).fetch_all(c).await)
            .await?;
        Ok(readable("tb_seckill_voucher", &rows))
    }

    /// Whether the sale's row can be locked; waits for no transaction but those that commit at this moment.
    ///
    /// # Errors
    /// [`Error::Conflict`] where another transaction holds it.
    pub async fn require_unlocked(&self, voucher_id: i64) -> Result<(), Error> {
        (|| self.try_to_lock(voucher_id))
            .retry(LOCK_TRIES)
            .when(|error| matches!(error, Error::Conflict))
            .await
    }

    async fn try_to_lock(&self, voucher_id: i64) -> Result<(), Error> {
        let mut transaction = self.begin().await?;
        let sale = BTreeSet::from([voucher_id]);
        let locked = transaction.roll_back_and_find_locked(&sale).await?;
        transaction.rollback().await?;
        if locked.is_empty() {
            Ok(())
        } else {
            Err(Error::Conflict)
        }
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
    /// The rows under the ids of `orders`, as this transaction sees them: whose each is, and whether it is not cancelled.
    pub async fn rows_of(
        &mut self,
        orders: &[NewOrder],
    ) -> Result<HashMap<i64, (Buyer, bool)>, Error> {
        let mut found = HashMap::new();
        for orders in orders.chunks(IDS) {
            let replies = self.run(&rows_sql(orders)).await?;
            for reply in &replies {
                found.extend(rows_by_id(reply)?);
            }
        }
        Ok(found)
    }

    /// Cancelled orders of a sale that are in the outbox.
    pub async fn returns_of(&mut self, voucher_id: i64) -> Result<Vec<OrderKey>, Error> {
        let sql = format!(
            "SELECT order_id, CAST(voucher_id AS SIGNED) AS voucher_id, \
             CAST(user_id AS SIGNED) AS user_id FROM tb_stock_return \
             WHERE voucher_id = {voucher_id} LIMIT {RETURNS}"
        );
        self.rows(&sql).await
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
            id_list(users.iter().copied())
        );
        let buyers: Vec<(i64,)> = self.rows(&sql).await?;
        let buyers: HashSet<i64> = buyers.into_iter().map(|(buyer,)| buyer).collect();
        users.retain(|user| !buyers.contains(user));
        Ok(users)
    }
}

/// The rows under the ids of these orders, to be read by [`rows_by_id`].
pub(super) fn rows_sql(orders: &[NewOrder]) -> String {
    format!(
        "SELECT CAST(id AS SIGNED), CAST(COALESCE(user_id, 0) AS SIGNED), \
         CAST(COALESCE(voucher_id, 0) AS SIGNED), CAST(COALESCE(status, 1) AS SIGNED) \
         FROM tb_voucher_order WHERE id IN ({})",
        id_list(orders.iter().map(|order| order.id))
    )
}

/// Whose each row is, and whether it is not cancelled.
pub(super) fn rows_by_id(reply: &Reply) -> Result<HashMap<i64, (Buyer, bool)>, Error> {
    let rows: Vec<(i64, i64, i64, i64)> = reply.all()?;
    let mut by_id = HashMap::with_capacity(rows.len());
    for (id, user_id, voucher_id, status) in rows {
        let buyer = Buyer {
            user_id,
            voucher_id,
        };
        by_id.insert(id, (buyer, status != 4));
    }
    Ok(by_id)
}
