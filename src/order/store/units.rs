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

/// Which units a purchase may claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// From this id on, those that nobody has locked.
    Unlocked(u64),
    /// All, waiting for those that purchases in flight have locked.
    Any,
}

/// What a refill found or did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refill {
    /// There are units that nobody has locked.
    Ready,
    /// The stock is used up, and purchases in flight have locked the last units.
    InFlight,
    /// Nothing is left.
    Empty,
}

impl OrderStore {
    /// Moves units from the stock to the sale's pool, up to [`POOL`], unless some are there that nobody has locked. The
    /// stock's row is locked meanwhile, so that one node refills and the others find what it did.
    ///
    /// # Errors
    /// [`Error::VoucherNotFound`] where there is no such sale; [`Error::Unavailable`] also where the commit's reply was
    /// lost, and the units are in the stock or in the pool. No order is made here, whatever the error.
    pub async fn refill_units(&self, voucher_id: i64) -> Result<Refill, Error> {
        let mut transaction = self.begin().await?;
        let stock = transaction.lock_stock(voucher_id).await?;
        let found = transaction.find_units(voucher_id).await?;
        let found = match found {
            (false, in_flight) if stock < 1 => {
                if in_flight {
                    Refill::InFlight
                } else {
                    Refill::Empty
                }
            }
            (true, _) => Refill::Ready,
            (false, _) => {
                transaction.move_units(voucher_id, stock.min(POOL)).await?;
                return match transaction.commit_once(voucher_id).await {
                    Err(Error::OutcomeUnknown(_)) => Err(Error::Unavailable("the database")),
                    outcome => outcome.map(|()| Refill::Ready),
                };
            }
        };
        transaction.rollback().await?;
        Ok(found)
    }
}

impl OrderTransaction {
    /// Inserts the order unless the unique keys refuse it, and deletes a unit of the sale's pool, if there is one: one
    /// round trip, which also opens the transaction. To be committed where the order is [`Placement::Placed`], else to
    /// be rolled back; [`Placement::SoldOut`] says only that the pool has no such unit.
    pub async fn place_with_unit(
        &mut self,
        order: &NewOrder,
        claim: Claim,
    ) -> Result<Placement, Error> {
        trace::step(self.place_with_unit_as_text(order, claim), steps::placed).await
    }

    async fn place_with_unit_as_text(
        &mut self,
        order: &NewOrder,
        claim: Claim,
    ) -> Result<Placement, Error> {
        let TextOutcome { changed, error } = self.run_text(&place_sql(order, claim)).await?;
        match (error, &changed[..]) {
            (Some(error), _) => Err(error.into()),
            (None, [0, ..]) => Ok(Placement::AlreadyOrdered),
            (None, [_, _, _, 1]) => Ok(Placement::Placed),
            (None, _) => Ok(Placement::SoldOut),
        }
    }

    /// Whether the pool has units that nobody has locked, and whether it has any at all.
    async fn find_units(&mut self, voucher_id: i64) -> Result<(bool, bool), Error> {
        let sql = format!(
            "SELECT CAST(id AS SIGNED) FROM tb_stock_unit WHERE voucher_id = ? LIMIT 1 {SKIP_LOCKED}"
        );
        let unlocked = sqlx::query_scalar::<_, i64>(&sql).bind(voucher_id);
        let any = sqlx::query_scalar::<_, i64>(
            "SELECT CAST(EXISTS (SELECT 1 FROM tb_stock_unit WHERE voucher_id = ?) AS SIGNED)",
        )
        .bind(voucher_id);
        let (deadline, connection) = self.open().await?;
        let unlocked = until(deadline, unlocked.fetch_optional(&mut *connection)).await?.is_some();
        let any = until(deadline, any.fetch_one(connection)).await? != 0;
        Ok((unlocked, any))
    }

    async fn move_units(&mut self, voucher_id: i64, count: i64) -> Result<(), Error> {
        let rows = vec![format!("({voucher_id})"); count.unsigned_abs() as usize].join(",");
        let insert = format!("INSERT INTO tb_stock_unit (voucher_id) VALUES {rows}");
        self.change(sqlx::query(&insert).persistent(false)).await?;
        let lower =
            sqlx::query("UPDATE tb_seckill_voucher SET stock = stock - ? WHERE voucher_id = ?")
                .bind(count)
                .bind(voucher_id);
        self.change(lower).await.map(drop)
    }
}

/// MariaDB 10.5 does not know it and waits for the locked rows, which is slower and as safe.
const SKIP_LOCKED: &str = "FOR UPDATE /*M!100600 SKIP LOCKED */ /*!80001 SKIP LOCKED */";

/// IGNORE makes a duplicate key drop the order instead of failing the text; then no unit is looked for.
fn place_sql(order: &NewOrder, claim: Claim) -> String {
    let NewOrder { id, buyer: Buyer { user_id, voucher_id }, .. } = *order;
    let (from, locking) = match claim {
        Claim::Unlocked(from) => (from, SKIP_LOCKED),
        Claim::Any => (0, "FOR UPDATE"),
    };
    format!(
        "INSERT IGNORE INTO tb_voucher_order (id, user_id, voucher_id) \
         VALUES ({id},{user_id},{voucher_id}); \
         SET @inserted = ROW_COUNT(), @unit = NULL; \
         SELECT id INTO @unit FROM tb_stock_unit FORCE INDEX (idx_voucher) \
         WHERE @inserted > 0 AND voucher_id = {voucher_id} AND id >= {from} LIMIT 1 {locking}; \
         DELETE FROM tb_stock_unit WHERE id = @unit"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_purchase_is_one_text_that_waits_for_nobodys_unit_unless_asked_to() {
        let order =
            NewOrder { id: 1, buyer: Buyer { user_id: 11, voucher_id: 7 }, unguarded: false };
        let fast = place_sql(&order, Claim::Unlocked(40));
        assert_eq!(fast.matches(';').count(), 3);
        assert!(fast.contains("voucher_id = 7 AND id >= 40 LIMIT 1"), "{fast}");
        assert!(fast.contains("SKIP LOCKED"), "{fast}");
        let waiting = place_sql(&order, Claim::Any);
        assert!(waiting.contains("id >= 0") && !waiting.contains("SKIP"), "{waiting}");
    }
}
