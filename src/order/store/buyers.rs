//! Who bought lately, for the buyers of sold-out sales.

use chrono::NaiveDateTime;

use super::orders::OrderStore;
use crate::error::Error;

impl OrderStore {
    /// The database's clock, UTC.
    pub async fn database_time(&self) -> Result<NaiveDateTime, Error> {
        let query = sqlx::query_scalar("SELECT CURRENT_TIMESTAMP");
        Ok(self.db.bounded(query.fetch_one(&self.db.pool)).await?)
    }

    /// Up to `limit` users with an order of this sale that the unique index guards and that was made at `since` (UTC) or
    /// later. Reads what all sales sold since then, from the index by status and time: it is made for minutes.
    pub async fn buyers_since(
        &self,
        voucher_id: i64,
        since: NaiveDateTime,
        limit: u32,
    ) -> Result<Vec<i64>, Error> {
        let query = sqlx::query_scalar(
            "SELECT CAST(buyer AS SIGNED) FROM tb_voucher_order FORCE INDEX (idx_status_create_time) \
             WHERE status IN (1, 2, 3, 5, 6) AND create_time >= ? AND voucher_id = ? \
             AND buyer IS NOT NULL LIMIT ?",
        )
        .bind(since)
        .bind(voucher_id)
        .bind(limit);
        Ok(self.db.bounded(query.fetch_all(&self.db.pool)).await?)
    }
}
