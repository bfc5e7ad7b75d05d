//! What the stream reads from the database; its orders are committed by [`super::batch`].

use std::collections::HashMap;

use super::OrderStore;
use super::id_list::id_list;
use crate::error::Error;
use crate::order::model::{Buyer, NewOrder};

impl OrderStore {
    /// The buyers of those of `orders` whose ids exist, in any status.
    pub async fn buyers_of(&self, orders: &[NewOrder]) -> Result<HashMap<i64, Buyer>, Error> {
        if orders.is_empty() {
            return Ok(HashMap::new());
        }
        let sql = format!(
            "SELECT id, CAST(user_id AS SIGNED), CAST(voucher_id AS SIGNED) FROM tb_voucher_order \
             WHERE id IN ({})",
            id_list(orders.iter().map(|order| order.id))
        );
        let query = sqlx::query_as(&sql).persistent(false).fetch_all(&self.db.pool);
        let rows: Vec<(i64, i64, i64)> = self.db.bounded(query).await?;
        let buyer = |(id, user_id, voucher_id)| (id, Buyer { user_id, voucher_id });
        Ok(rows.into_iter().map(buyer).collect())
    }

    /// The sale's stock, and how many of these of its orders are committed: in one statement, and so at one moment.
    /// `None` where there is no such sale.
    pub async fn stock_and_committed(
        &self,
        voucher_id: i64,
        orders: &[NewOrder],
    ) -> Result<Option<(i64, i64)>, Error> {
        let ids = id_list(orders.iter().map(|order| order.id));
        let sql = format!(
            "SELECT CAST(stock AS SIGNED), (SELECT COUNT(*) FROM tb_voucher_order \
             WHERE id IN ({ids}) AND voucher_id = {voucher_id}) \
             FROM tb_seckill_voucher WHERE voucher_id = {voucher_id}"
        );
        let query = sqlx::query_as(&sql).persistent(false).fetch_optional(&self.db.pool);
        Ok(self.db.bounded(query).await?)
    }

    /// The sales on the stream that are on, or will be.
    pub async fn stream_sales(&self) -> Result<Vec<i64>, Error> {
        let query = sqlx::query_scalar(
            "SELECT CAST(voucher_id AS SIGNED) FROM tb_seckill_voucher \
             WHERE strategy = 'stream' AND end_time > CURRENT_TIMESTAMP",
        );
        Ok(self.db.bounded(query.fetch_all(&self.db.pool)).await?)
    }
}
