//! The pools of the strategy `unit-rows`: units of stock as rows of `tb_stock_unit`. A unit is either in a sale's stock or
//! in its pool; [`OrderStore::refill_units`] moves some from the one to the other, in one transaction, and a purchase
//! deletes the row that it claims in the transaction of its order. So `stock + rows + orders` is what was issued, after
//! every commit; cancelled orders give their units back to the stock.

use super::orders::OrderStore;
use super::transaction::{OrderTransaction, TextOutcome, until};
use crate::error::Error;
use crate::order::model::{Buyer, NewOrder, Placement};
use crate::order::steps;
use crate::request::trace;

/// Units in a pool after it was refilled, at most. A node that sells from the stock alone, such as one in Java, cannot
/// sell these; the larger the pool, the rarer the stock's row is locked.
pub const POOL: i64 = 256;

/// How often a refill waits for the last units, which purchases in flight have locked, and then looks again.
const WAITS: u32 = 4;

impl OrderStore {
    /// Moves units from the stock to the sale's pool, up to [`POOL`], unless some are there that nobody has locked. The
    /// stock's row is locked meanwhile, so that one node refills and the others find what it did. Where purchases in flight
    /// have locked the last units, it waits for their end, without that lock: one that is undone leaves its unit to others.
    ///
    /// Returns the least id of the units that nobody has locked; `None` where stock and pool were empty at one moment.
    ///
    /// # Errors
    /// [`Error::VoucherNotFound`] where there is no such sale; [`Error::Conflict`] where the wait for a lock was too long;
    /// [`Error::Unavailable`] also where the commit's reply was lost, and the units are in the stock or in the pool. No
    /// order is made here, whatever the error.
    ///
    /// # Cancellation
    /// Dropped, the units are in the stock or in the pool.
    pub async fn refill_units(&self, voucher_id: i64) -> Result<Option<u64>, Error> {
        for _ in 0..WAITS {
            let mut transaction = self.begin().await?;
            let stock = transaction.lock_stock(voucher_id).await?;
            let free = transaction.first_unit(voucher_id, SKIP_LOCKED).await?;
            if free.is_none() && stock > 0 {
                let first = transaction.move_units(voucher_id, stock.min(POOL)).await?;
                return match transaction.commit_once(voucher_id).await {
                    Err(Error::OutcomeUnknown(_)) => Err(Error::Unavailable("the database")),
                    outcome => outcome.map(|()| Some(first)),
                };
            }
            let in_flight =
                free.is_none() && transaction.first_unit(voucher_id, "").await?.is_some();
            transaction.rollback().await?;
            if !in_flight {
                return Ok(free);
            }
            let mut waiting = self.begin().await?;
            let undone = waiting.first_unit(voucher_id, "FOR UPDATE").await?;
            waiting.rollback().await?;
            if undone.is_some() {
                return Ok(undone);
            }
        }
        Err(Error::Conflict)
    }
}

impl OrderTransaction {
    /// Inserts the order unless the unique keys refuse it, and deletes a unit of the sale's pool, from the id `first` on, that
    /// nobody has locked, if there is one: one round trip, which also opens the transaction. To be committed where the order
    /// is [`Placement::Placed`], else to be rolled back; [`Placement::SoldOut`] says only that the pool has no such unit.
    pub async fn place_with_unit(
        &mut self,
        order: &NewOrder,
        first: u64,
    ) -> Result<Placement, Error> {
        trace::step(self.place_with_unit_as_text(order, first), steps::placed).await
    }

    /// Undoes everything, and reads which order the buyer has: one round trip.
    pub async fn undo_for_order_of(mut self, buyer: Buyer) -> Result<Option<i64>, Error> {
        let Buyer { user_id, voucher_id } = buyer;
        // On this connection: those that want one may be many.
        let statements = format!(
            "ROLLBACK; SELECT id FROM tb_voucher_order \
             WHERE user_id = {user_id} AND voucher_id = {voucher_id} AND status <> 4 LIMIT 1"
        );
        let results = self.read_text(&statements).await?;
        self.ended();
        Ok(results.last().copied().flatten())
    }

    async fn place_with_unit_as_text(
        &mut self,
        order: &NewOrder,
        first: u64,
    ) -> Result<Placement, Error> {
        let TextOutcome { changed, error } = self.run_text(&place_sql(order, first)).await?;
        match (error, &changed[..]) {
            (Some(error), _) => Err(error.into()),
            (None, [0, ..]) => Ok(Placement::AlreadyOrdered),
            (None, [_, _, _, 1]) => Ok(Placement::Placed),
            (None, _) => Ok(Placement::SoldOut),
        }
    }

    /// The least id in the pool, of the units that a read with this locking clause finds.
    async fn first_unit(&mut self, voucher_id: i64, locking: &str) -> Result<Option<u64>, Error> {
        let sql = format!(
            "SELECT CAST(id AS SIGNED) FROM tb_stock_unit FORCE INDEX (idx_voucher) \
             WHERE voucher_id = ? LIMIT 1 {locking}"
        );
        let query = sqlx::query_scalar::<_, i64>(&sql).bind(voucher_id);
        let (deadline, connection) = self.open().await?;
        let id = until(deadline, query.fetch_optional(connection)).await?;
        Ok(id.map(i64::cast_unsigned))
    }

    /// Returns the least id of the moved units.
    async fn move_units(&mut self, voucher_id: i64, count: i64) -> Result<u64, Error> {
        let rows = vec![format!("({voucher_id})"); count.unsigned_abs() as usize].join(",");
        let insert = format!("INSERT INTO tb_stock_unit (voucher_id) VALUES {rows}");
        let insert = sqlx::query(&insert).persistent(false);
        let (deadline, connection) = self.open().await?;
        let first = until(deadline, insert.execute(connection)).await?.last_insert_id();
        let lower =
            sqlx::query("UPDATE tb_seckill_voucher SET stock = stock - ? WHERE voucher_id = ?")
                .bind(count)
                .bind(voucher_id);
        self.change(lower).await?;
        Ok(first)
    }
}

/// MariaDB 10.5 does not know it and waits for the locked rows, which is slower and as safe.
const SKIP_LOCKED: &str = "FOR UPDATE /*M!100600 SKIP LOCKED */ /*!80001 SKIP LOCKED */";

/// IGNORE makes a duplicate key drop the order instead of failing the text; then no unit is looked for.
fn place_sql(order: &NewOrder, first: u64) -> String {
    let NewOrder { id, buyer: Buyer { user_id, voucher_id }, .. } = *order;
    format!(
        "INSERT IGNORE INTO tb_voucher_order (id, user_id, voucher_id) \
         VALUES ({id},{user_id},{voucher_id}); \
         SET @inserted = ROW_COUNT(), @unit = NULL; \
         SELECT id INTO @unit FROM tb_stock_unit FORCE INDEX (idx_voucher) \
         WHERE @inserted > 0 AND voucher_id = {voucher_id} AND id >= {first} LIMIT 1 {SKIP_LOCKED}; \
         DELETE FROM tb_stock_unit WHERE id = @unit"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_purchase_is_one_text_that_waits_for_nobodys_unit() {
        let order =
            NewOrder { id: 1, buyer: Buyer { user_id: 11, voucher_id: 7 }, unguarded: false };
        let text = place_sql(&order, 40);
        assert_eq!(text.matches(';').count(), 3);
        assert!(text.contains("voucher_id = 7 AND id >= 40 LIMIT 1"), "{text}");
        assert!(text.contains("SKIP LOCKED"), "{text}");
    }
}
