//! In which time zones the nodes made the ids of the last orders, for `doctor`.

use super::OrderStore;
use crate::error::Error;
use crate::id::EPOCH_SECONDS;

/// Orders of each status that are looked at.
const ORDERS: i64 = 200;

impl OrderStore {
    /// The newest orders by the offset from UTC, in seconds, that their ids were made with: the local seconds in the id less
    /// the instant of the row's `create_time`, rounded to a quarter of an hour. As (offset, orders), the most orders first.
    pub async fn offsets_of_ids(&self) -> Result<Vec<(i64, i64)>, Error> {
        // Unpaid and paid ones, by status as the index has them; a Java node's stay unpaid.
        let sql = format!(
            "SELECT CAST(ROUND((CAST(id >> 32 AS SIGNED) + {EPOCH_SECONDS} - UNIX_TIMESTAMP(create_time)) / 900) * 900 \
             AS SIGNED) AS ahead, COUNT(*) FROM (\
             (SELECT id, create_time FROM tb_voucher_order WHERE status = 1 \
              ORDER BY create_time DESC LIMIT {ORDERS}) \
             UNION ALL \
             (SELECT id, create_time FROM tb_voucher_order WHERE status = 2 \
              ORDER BY create_time DESC LIMIT {ORDERS})\
             ) newest WHERE UNIX_TIMESTAMP(create_time) > 0 GROUP BY ahead ORDER BY 2 DESC, 1",
        );
        Ok(self
            .db
            .read(async |c| sqlx::query_as(&sql).fetch_all(c).await)
            .await?)
    }
}
