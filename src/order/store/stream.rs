//! What the stream asks of the database besides committing batches.

use std::collections::HashMap;

use super::OrderStore;
use crate::error::Error;
use crate::order::model::{Buyer, NewOrder};

impl OrderStore {
    /// Whose the orders with these ids are, as far as they exist, in whatever state.
    pub async fn known(&self, orders: &[NewOrder]) -> Result<HashMap<i64, Buyer>, Error> {
        if orders.is_empty() {
            return Ok(HashMap::new());
        }
        let sql = format!(
            "SELECT id, CAST(user_id AS SIGNED), CAST(voucher_id AS SIGNED) FROM tb_voucher_order \
             WHERE id IN ({})",
            ids(orders)
        );
        let query = sqlx::query_as(&sql).persistent(false).fetch_all(&self.db.pool);
        let rows: Vec<(i64, i64, i64)> = self.db.bounded(query).await?;
        let buyer = |(id, user_id, voucher_id)| (id, Buyer { user_id, voucher_id });
        Ok(rows.into_iter().map(buyer).collect())
    }

    /// What a sale has left, and how many of these of its orders are committed: in one statement, and so
    /// at one moment. `None` where there is no such sale.
    pub async fn left(
        &self,
        voucher_id: i64,
        orders: &[NewOrder],
    ) -> Result<Option<(i64, i64)>, Error> {
        let ids = if orders.is_empty() { "NULL".to_owned() } else { ids(orders) };
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

fn ids(orders: &[NewOrder]) -> String {
    orders.iter().map(|order| order.id.to_string()).collect::<Vec<_>>().join(",")
}
