//! Sums for the audit: stock, orders and buyers of each sale.

use serde::Serialize;

use super::OrderStore;
use crate::connection::row::row;
use crate::error::Error;

row! {
    /// One sale's totals, read in one statement and so at one moment.
    #[derive(Debug, Serialize)]
    #[serde(rename_all = "camelCase")]
    pub struct Totals {
        /// `tb_voucher.id`.
        pub voucher_id: i64,
        /// How it sells.
        pub strategy: String,
        /// Put on sale in all; `None` where a Java node published the sale.
        pub issued: Option<i64>,
        /// Left to sell.
        pub stock: i64,
        /// Orders that are not cancelled.
        pub orders: i64,
        /// Orders that are cancelled, and have given their stock back.
        pub cancelled: i64,
        /// Users who have an order that is not cancelled. Not shown: a finding has the duplicates instead.
        #[serde(skip)]
        pub buyers: i64,
    }
}

impl OrderStore {
    /// Totals of one sale or of all, by voucher.
    pub async fn totals(&self, voucher_id: Option<i64>) -> Result<Vec<Totals>, Error> {
        // Not bounded by the request limit: it reads every order there is, and no buyer waits for it.
        Ok(sqlx::query_as(
            "SELECT CAST(s.voucher_id AS SIGNED) AS voucher_id, s.strategy, s.issued, \
             CAST(s.stock AS SIGNED) AS stock, \
             COUNT(CASE WHEN o.status <> 4 THEN 1 END) AS orders, \
             COUNT(CASE WHEN o.status = 4 THEN 1 END) AS cancelled, \
             COUNT(DISTINCT CASE WHEN o.status <> 4 THEN o.user_id END) AS buyers \
             FROM tb_seckill_voucher s \
             LEFT JOIN tb_voucher_order o ON o.voucher_id = s.voucher_id \
             WHERE ? IS NULL OR s.voucher_id = ? \
             GROUP BY s.voucher_id, s.strategy, s.issued, s.stock ORDER BY s.voucher_id",
        )
        .bind(voucher_id)
        .bind(voucher_id)
        .fetch_all(&self.db.pool)
        .await?)
    }
}
