//! The units of the strategy `unit-rows`: rows of `tb_stock_unit`, inserted when the sale is published. A purchase deletes
//! the row that it claims in the transaction of its order. Units that were added or given back later are in the sale's
//! stock and are sold from there. So `stock + rows + orders` is what was issued, after every commit.

use super::transaction::OrderTransaction;
use crate::error::Error;
use crate::order::model::{Buyer, NewOrder, Placement};
use crate::order::steps;
use crate::request::trace;

impl OrderTransaction {
    /// Inserts the order unless the unique keys refuse it, and claims a unit: one round trip, which also opens the
    /// transaction, and another where others have locked all rows that are left. To be committed where the order is
    /// [`Placement::Placed`], else to be rolled back.
    pub async fn place_with_unit(&mut self, order: &NewOrder) -> Result<Placement, Error> {
        let placing = async {
            match self.claim(&claim_a_free_row(order)).await?[..] {
                [0, ..] => return Ok(Placement::AlreadyOrdered),
                [_, _, _, 1] => return Ok(Placement::Placed),
                _ => {}
            }
            match self.claim(&claim_any(order.buyer.voucher_id)).await?[..] {
                [_, 1, _] | [_, _, 1] => Ok(Placement::Placed),
                _ => Ok(Placement::SoldOut),
            }
        };
        trace::step(placing, steps::placed).await
    }

    async fn claim(&mut self, statements: &str) -> Result<Vec<u64>, Error> {
        Ok(self
            .run(statements)
            .await?
            .iter()
            .map(|reply| reply.changed)
            .collect())
    }
}

/// IGNORE makes a duplicate key drop the order instead of failing the text; then no row is looked for. MariaDB 10.5 does
/// not know SKIP LOCKED and waits for the locked rows, which is slower and as safe.
fn claim_a_free_row(order: &NewOrder) -> String {
    let NewOrder {
        id,
        buyer: Buyer {
            user_id,
            voucher_id,
        },
        ..
    } = *order;
    format!(
        "INSERT IGNORE INTO tb_voucher_order (id, user_id, voucher_id) \
         VALUES ({id},{user_id},{voucher_id}); \
         SET @inserted = ROW_COUNT(), @unit = NULL; \
         SELECT id INTO @unit FROM tb_stock_unit FORCE INDEX (idx_voucher) \
         WHERE @inserted > 0 AND voucher_id = {voucher_id} LIMIT 1 \
         FOR UPDATE /*M!100600 SKIP LOCKED */ /*!80001 SKIP LOCKED */; \
         DELETE FROM tb_stock_unit WHERE id = @unit"
    )
}

/// Waits for the rows that purchases in flight have locked, because one that is undone leaves its row; then takes one from
/// the stock.
fn claim_any(voucher_id: i64) -> String {
    format!(
        "SELECT id INTO @unit FROM tb_stock_unit FORCE INDEX (idx_voucher) \
         WHERE voucher_id = {voucher_id} LIMIT 1 FOR UPDATE; \
         DELETE FROM tb_stock_unit WHERE id = @unit; \
         UPDATE tb_seckill_voucher SET stock = stock - 1 \
         WHERE voucher_id = IF(@unit IS NULL, {voucher_id}, 0) AND stock > 0"
    )
}
