//! Sales, as the upkeep of their keys in Redis sees them.

use super::orders::OrderStore;
use crate::error::Error;

impl OrderStore {
    /// Up to `limit` sales above `after` whose id modulo `count` is `number`, in rising order, and whether each ended more
    /// than an hour ago.
    pub async fn sales_after(
        &self,
        after: i64,
        limit: u32,
        (count, number): (u8, u8),
    ) -> Result<Vec<(i64, bool)>, Error> {
        let query = sqlx::query_as::<_, (i64, i64)>(
            "SELECT CAST(voucher_id AS SIGNED), \
             CAST(end_time < CURRENT_TIMESTAMP - INTERVAL 1 HOUR AS SIGNED) \
             FROM tb_seckill_voucher WHERE voucher_id > ? AND MOD(voucher_id, ?) = ? \
             ORDER BY voucher_id LIMIT ?",
        )
        .bind(after)
        .bind(count)
        .bind(number)
        .bind(limit);
        let sales = self.db.bounded(query.fetch_all(&self.db.pool)).await?;
        Ok(sales.into_iter().map(|(sale, ended)| (sale, ended != 0)).collect())
    }

    /// The sales on the stream that are on and have stock left, and whose id modulo `count` is `number`: sale and stock.
    pub async fn stock_on_the_stream(
        &self,
        (count, number): (u8, u8),
    ) -> Result<Vec<(i64, i64)>, Error> {
        let query = sqlx::query_as(
            "SELECT CAST(voucher_id AS SIGNED), CAST(stock AS SIGNED) FROM tb_seckill_voucher \
             WHERE strategy = 'stream' AND stock > 0 AND begin_time <= CURRENT_TIMESTAMP \
             AND end_time > CURRENT_TIMESTAMP AND MOD(voucher_id, ?) = ?",
        )
        .bind(count)
        .bind(number);
        Ok(self.db.bounded(query.fetch_all(&self.db.pool)).await?)
    }
}
