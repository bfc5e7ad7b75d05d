//! The units of the strategy `unit-rows`: rows of `tb_stock_unit`, inserted when the sale is published. A purchase deletes
//! the row that it claims in the transaction of its order. Units that were added or given back later are in the sale's
//! stock and are sold from there. So `stock + rows + orders` is what was issued, after every commit.

use super::commit::{Ended, Kind, Obstacle, Text, step_of};
use super::transaction::{OrderTransaction, Reply};
use crate::error::Error;
use crate::order::model::NewOrder;
use crate::order::steps;
use crate::request::trace;

impl OrderTransaction {
    /// As [`OrderTransaction::place`], for an order that claims a unit of the sale.
    pub async fn place_with_unit(self, order: &NewOrder) -> Result<i64, Error> {
        let placing = self.commit_with_unit(order);
        let ended = trace::step(placing, |ended| match ended {
            // On this strategy the unique index checks the buyer.
            Ok(Ended::Stopped(_, Obstacle::DuplicateKey)) => steps::placed("ordered-before"),
            ended => step_of(ended, true),
        });
        ended.await?.outcome_of(order).await
    }

    /// Inserts the order, claims a unit, and commits: one round trip, and two more where others have locked all rows that are
    /// left.
    ///
    /// # Errors
    /// As of [`OrderTransaction::commit_with`].
    async fn commit_with_unit(self, order: &NewOrder) -> Result<Ended, Error> {
        let kind = Kind::Purchases;
        let text = Text::default()
            .insert(order)
            .claim(&claim_a_free_row(order.buyer.voucher_id));
        let ended = self.commit_with(text, order, kind).await?;
        let Ended::Stopped(mut open, Obstacle::NoFreeUnit) = ended else {
            return Ok(ended);
        };
        let claim = claim_any(order.buyer.voucher_id);
        let claimed: Vec<u64> = open.run(&claim).await?.iter().map(Reply::changed).collect();
        // Either the second statement has deleted a row, or the third has lowered the stock.
        match claimed[..] {
            [_, 1, _] | [_, _, 1] => open.commit_with(Text::default(), order, kind).await,
            _ => Ok(Ended::Stopped(open, Obstacle::SoldOut)),
        }
    }
}

/// The last of these deletes the unit. MariaDB 10.5 does not know SKIP LOCKED and waits for the locked rows, which is slower
/// and as safe.
fn claim_a_free_row(voucher_id: i64) -> [String; 3] {
    [
        "SET @unit = NULL".to_owned(),
        format!(
            "SELECT id INTO @unit FROM tb_stock_unit FORCE INDEX (idx_voucher) \
             WHERE voucher_id = {voucher_id} LIMIT 1 \
             FOR UPDATE /*M!100600 SKIP LOCKED */ /*!80001 SKIP LOCKED */"
        ),
        "DELETE FROM tb_stock_unit WHERE id = @unit".to_owned(),
    ]
}

/// Waits for a row that a purchase in flight has locked, because a purchase that is undone leaves its row. If there is no row,
/// takes one from the stock.
fn claim_any(voucher_id: i64) -> String {
    format!(
        "SELECT id INTO @unit FROM tb_stock_unit FORCE INDEX (idx_voucher) \
         WHERE voucher_id = {voucher_id} LIMIT 1 FOR UPDATE; \
         DELETE FROM tb_stock_unit WHERE id = @unit; \
         UPDATE tb_seckill_voucher SET stock = stock - 1 \
         WHERE voucher_id = IF(@unit IS NULL, {voucher_id}, 0) AND stock > 0"
    )
}
