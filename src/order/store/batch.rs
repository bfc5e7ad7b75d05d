//! What a batch of purchases writes: many orders of one sale in one transaction. The usual batch is two
//! round trips: [`OrderStore::begin_batch`], then the commit. The rest is for batches that meet
//! a buyer who has an order already, or more buyers than stock.
//!
//! The statements travel as text, not prepared: one statement then fits a batch of any size, where
//! prepared ones would need a stock of shapes, and several travel together, which the protocol does not
//! allow for prepared ones. Everything put into the text is an integer.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use tokio::time::Instant;

use super::ledger::until;
use super::{Ledger, OrderStore};
use crate::error::Error;
use crate::order::model::NewOrder;

/// What [`OrderStore::begin_batch`] found.
pub struct Begun {
    /// The open transaction.
    pub ledger: Ledger,
    /// How many of the orders were inserted; the unique keys dropped the others.
    pub inserted: usize,
    /// Whether the stock sufficed for those, and was lowered by as many.
    pub decremented: bool,
}

/// Why a batch did not begin. Nothing was done.
pub enum NotBegun {
    /// An order could not be inserted, and perhaps only that one.
    Insert(Error),
    /// Something that concerns all of them.
    All(Error),
}

impl OrderStore {
    /// Opens a transaction, inserts what the unique keys let pass of `orders` (which are all of one
    /// sale) and lowers the stock by the number inserted if there is that much: one round trip.
    /// The hot row is touched last, and nothing that is waited for comes between.
    ///
    /// Rivals that insert in the same order cannot deadlock: `orders` should be sorted by buyer.
    pub async fn begin_batch(
        &self,
        voucher_id: i64,
        orders: &[NewOrder],
    ) -> Result<Begun, NotBegun> {
        let deadline = Instant::now() + self.db.timeout;
        let connection = until(deadline, self.db.pool.acquire())
            .await
            .map_err(|fault| NotBegun::All(fault.into()))?;
        let mut ledger = Ledger::on(connection, deadline, self.db.timeout);
        let sql = begin_sql(voucher_id, orders);
        let (changed, ended) = ledger.texts(&sql).await;
        match ended {
            Ok(()) => {}
            Err(fault @ sqlx::Error::Database(_)) if changed.len() == 1 => {
                // Taken back here and waited for: what follows inserts the same orders again, and must
                // not meet the locks of this transaction, nor deadlock when they go.
                if let Err(fault) = ledger.rollback().await {
                    tracing::debug!(%fault, "a batch's connection is closed instead of rolled back");
                }
                return Err(NotBegun::Insert(fault.into()));
            }
            Err(fault) => return Err(NotBegun::All(fault.into())),
        }
        let [_, inserted, _, lowered] = changed[..] else {
            let detail = format!("a batch of 4 statements gave {} results", changed.len());
            return Err(NotBegun::All(Error::Internal(detail)));
        };
        // The driver counts rows that were found, so this holds for a decrement by 0 as well.
        Ok(Begun { ledger, inserted: inserted as usize, decremented: lowered == 1 })
    }

    /// The orders that these users have of a sale, by user.
    pub async fn of_buyers(
        &self,
        voucher_id: i64,
        users: &[i64],
    ) -> Result<HashMap<i64, i64>, Error> {
        if users.is_empty() {
            return Ok(HashMap::new());
        }
        let users = list(users.iter().copied());
        let sql = format!(
            "SELECT CAST(user_id AS SIGNED), id FROM tb_voucher_order \
             WHERE voucher_id = {voucher_id} AND buyer IN ({users})"
        );
        let rows: Vec<(i64, i64)> = self
            .db
            .bounded(sqlx::query_as(&sql).persistent(false).fetch_all(&self.db.pool))
            .await?;
        Ok(rows.into_iter().collect())
    }
}

impl Ledger {
    /// The ids of those of `orders` that this transaction sees in the table as theirs.
    pub async fn present(&mut self, orders: &[NewOrder]) -> Result<HashSet<i64>, Error> {
        // By id alone, which is all that the primary key needs; the rest is compared here.
        let ids = list(orders.iter().map(|order| order.id));
        let sql = format!(
            "SELECT id, CAST(user_id AS SIGNED), CAST(voucher_id AS SIGNED) \
             FROM tb_voucher_order WHERE id IN ({ids})"
        );
        let query = sqlx::query_as(&sql).persistent(false);
        let found: Vec<(i64, i64, i64)> =
            until(self.deadline, query.fetch_all(&mut *self.connection)).await?;
        let found: HashSet<_> = found.into_iter().collect();
        let ours = |order: &&NewOrder| {
            found.contains(&(order.id, order.buyer.user_id, order.buyer.voucher_id))
        };
        Ok(orders.iter().filter(ours).map(|order| order.id).collect())
    }

    /// Locks the sale's row until this transaction ends; returns its stock.
    pub async fn lock_stock(&mut self, voucher_id: i64) -> Result<i64, Error> {
        let query = sqlx::query_scalar(
            "SELECT CAST(stock AS SIGNED) FROM tb_seckill_voucher WHERE voucher_id = ? FOR UPDATE",
        )
        .bind(voucher_id);
        let stock = until(self.deadline, query.fetch_optional(&mut *self.connection)).await?;
        stock.ok_or(Error::VoucherNotFound)
    }

    /// Takes back orders that this transaction inserted; they must be there.
    pub async fn take_back(&mut self, ids: &HashSet<i64>) -> Result<(), Error> {
        let ids_list = list(ids.iter().copied());
        let sql = format!("DELETE FROM tb_voucher_order WHERE id IN ({ids_list})");
        let deleted = self.change(sqlx::query(&sql).persistent(false)).await?;
        if deleted == ids.len() as u64 {
            Ok(())
        } else {
            Err(Error::Internal(format!("{deleted} of {} orders were taken back", ids.len())))
        }
    }

    /// Takes `count` from the stock if there is that much; says whether there was.
    pub async fn decrement_by(&mut self, voucher_id: i64, count: usize) -> Result<bool, Error> {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        let query = sqlx::query(
            "UPDATE tb_seckill_voucher SET stock = stock - ? WHERE voucher_id = ? AND stock >= ?",
        )
        .bind(count)
        .bind(voucher_id)
        .bind(count);
        Ok(self.change(query).await? > 0)
    }
}

/// IGNORE makes a duplicate key drop its row instead of failing all; ROW_COUNT() is then the number
/// of rows that went in.
fn begin_sql(voucher_id: i64, orders: &[NewOrder]) -> String {
    let mut sql = String::with_capacity(256 + 48 * orders.len());
    sql.push_str(
        "START TRANSACTION; INSERT IGNORE INTO tb_voucher_order (id, user_id, voucher_id) VALUES ",
    );
    rows(&mut sql, orders);
    // Writing to a String cannot fail.
    write!(
        sql,
        "; SET @inserted = ROW_COUNT(); UPDATE tb_seckill_voucher SET stock = stock - @inserted \
         WHERE voucher_id = {voucher_id} AND stock >= @inserted"
    )
    .ok();
    sql
}

/// `(id, user, voucher), …`
fn rows(sql: &mut String, orders: &[NewOrder]) {
    for (at, order) in orders.iter().enumerate() {
        let comma = if at == 0 { "" } else { "," };
        let (user, voucher) = (order.buyer.user_id, order.buyer.voucher_id);
        write!(sql, "{comma}({},{user},{voucher})", order.id).ok();
    }
}

pub(super) fn list(numbers: impl Iterator<Item = i64>) -> String {
    numbers.map(|number| number.to_string()).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::model::Buyer;

    #[test]
    fn a_batch_is_four_statements_in_one_text() {
        let order = |id| NewOrder {
            id,
            buyer: Buyer { user_id: id + 10, voucher_id: 7 },
            unguarded: false,
        };
        assert_eq!(
            begin_sql(7, &[order(1), order(2)]),
            "START TRANSACTION; INSERT IGNORE INTO tb_voucher_order (id, user_id, voucher_id) \
             VALUES (1,11,7),(2,12,7); SET @inserted = ROW_COUNT(); UPDATE tb_seckill_voucher \
             SET stock = stock - @inserted WHERE voucher_id = 7 AND stock >= @inserted"
        );
    }
}
