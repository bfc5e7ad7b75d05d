//! The units of the strategy `unit-rows`: rows of `tb_stock_unit`, inserted when the sale is published. A purchase deletes
//! the row that it claims in the transaction of its order. Units that were added or given back later are in the sale's
//! stock and are sold from there. So `stock + rows + orders` is what was issued, after every commit.

use super::transaction::{OrderTransaction, Reply, insert_sql};
use crate::error::Error;
use crate::order::model::{NewOrder, Placement};
use crate::order::steps;
use crate::request::trace;

impl OrderTransaction {
    /// Inserts the order and claims a unit: one round trip, which also opens the transaction, and another where others have
    /// locked all rows that are left. To be committed where the order is [`Placement::Placed`], else to be rolled back.
    ///
    /// # Errors
    /// As of [`OrderTransaction::insert`].
    pub async fn place_with_unit(&mut self, order: &NewOrder) -> Result<Placement, Error> {
        let placing = async {
            let claim = claim_a_free_row(order);
            if let [_, _, _, 1] = changed(&self.insert_by(order, &claim).await?)[..] {
                return Ok(Placement::Placed);
            }
            let claim = claim_any(order.buyer.voucher_id);
            match changed(&self.run(&claim).await?)[..] {
                [_, 1, _] | [_, _, 1] => Ok(Placement::Placed),
                _ => Ok(Placement::SoldOut),
            }
        };
        trace::step(placing, steps::claimed).await
    }
}

fn changed(replies: &[Reply]) -> Vec<u64> {
    replies.iter().map(|reply| reply.changed).collect()
}

/// A text ends at the statement that fails: where a key refuses the order, no row is looked for. MariaDB 10.5 does not know
/// SKIP LOCKED and waits for the locked rows, which is slower and as safe.
fn claim_a_free_row(order: &NewOrder) -> String {
    let voucher_id = order.buyer.voucher_id;
    format!(
        "{}; SET @unit = NULL; \
         SELECT id INTO @unit FROM tb_stock_unit FORCE INDEX (idx_voucher) \
         WHERE voucher_id = {voucher_id} LIMIT 1 \
         FOR UPDATE /*M!100600 SKIP LOCKED */ /*!80001 SKIP LOCKED */; \
         DELETE FROM tb_stock_unit WHERE id = @unit",
        insert_sql(order)
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
