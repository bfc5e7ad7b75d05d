//! The units of the strategy `unit-rows`: rows of `tb_stock_unit`, inserted when the sale is published. A purchase deletes
//! the row that it claims in the transaction of its order. Units that were added or given back later are in the sale's
//! stock and are sold from there. So `stock + rows + orders` is what was issued, after every commit.

use super::commit::{Ended, Kind, Obstacle, Part, Text, step_of};
use super::transaction::OrderTransaction;
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
    async fn commit_with_unit(self, order: &NewOrder) -> Result<Ended, Error> {
        let voucher_id = order.buyer.voucher_id;
        let text = Text::default().insert(order).claim_free_unit(voucher_id);
        let ended = self.commit_with(text, order, Kind::Purchases).await?;
        let Ended::Stopped(mut open, Obstacle::NoFreeUnit) = ended else {
            return Ok(ended);
        };
        let [_, deleted, lowered] = open.run(&claim_any(voucher_id)).await?;
        if deleted.changed + lowered.changed == 0 {
            return Ok(Ended::Stopped(open, Obstacle::SoldOut));
        }
        open.commit_with(Text::default(), order, Kind::Purchases)
            .await
    }
}

impl Text {
    /// Claims a unit that nobody has locked. MariaDB 10.5 does not know SKIP LOCKED and waits for the locked rows, which is
    /// slower and as safe.
    fn claim_free_unit(self, voucher_id: i64) -> Self {
        let select = format!(
            "SELECT id INTO @unit FROM tb_stock_unit FORCE INDEX (idx_voucher) \
             WHERE voucher_id = {voucher_id} LIMIT 1 \
             FOR UPDATE /*M!100600 SKIP LOCKED */ /*!80001 SKIP LOCKED */"
        );
        self.add(Part::Take, "SET @unit = NULL")
            .add(Part::Take, &select)
            .add(Part::Take, "DELETE FROM tb_stock_unit WHERE id = @unit")
            .refuse(Part::Claimed, "ROW_COUNT() <> 1")
    }
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
