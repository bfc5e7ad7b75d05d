//! Sums for the audit: stock, orders, buyers and outbox of each sale.

use chrono::{DateTime, Datelike, TimeZone, Utc};
use serde::Serialize;

use super::OrderStore;
use crate::clock::Zone;
use crate::connection::row::from_row;
use crate::error::Error;
use crate::id::EPOCH_SECONDS;

/// How long after the end of a sale an order may be dated by both clocks, seconds: a purchase that was admitted in the
/// last moment may take half a minute.
const LATE_SECONDS: i64 = 60;

/// One sale's totals, read in one statement and so at one moment.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Totals {
    /// `tb_voucher.id`.
    pub voucher_id: i64,
    /// How it sells; empty where there is no row of a sale.
    pub strategy: String,
    /// Put on sale in all; `None` where a Java node published the sale.
    pub issued: Option<i64>,
    /// Left to sell, in the stock and as rows of units.
    pub stock: i64,
    /// Orders that are not cancelled.
    pub orders: i64,
    /// Orders that are cancelled, and have given their stock back.
    pub cancelled: i64,
    /// Users who have an order that is not cancelled. Not shown: a finding has the duplicates instead.
    #[serde(skip)]
    pub buyers: i64,
    /// Orders that the unique index skips. Not shown: they are a finding on a safe strategy only.
    #[serde(skip)]
    pub skipped_by_index: i64,
    /// Orders that both the seconds in their id and their `create_time` put outside the sale's window.
    pub outside_window: i64,
    /// Cancelled orders whose stock was not returned in Redis yet.
    pub undelivered: i64,
    /// Age of the oldest of these, seconds.
    pub undelivered_seconds: i64,
}

from_row! { Totals:
    voucher_id, strategy, issued, stock, orders, cancelled, buyers, skipped_by_index,
    outside_window, undelivered, undelivered_seconds
}

impl OrderStore {
    /// Totals of one sale or of all, by voucher; also of vouchers that have orders and no sale.
    pub async fn totals(&self, voucher_id: Option<i64>) -> Result<Vec<Totals>, Error> {
        let (least, most) = offsets(self.zone, Utc::now());
        let is_asked = voucher_id.map_or("TRUE".to_owned(), |id| format!("voucher_id = {id}"));
        // An id begins with local seconds; the offsets are the zone's extremes, so that an hour of summer time is no violation.
        let sql = format!(
            "SELECT CAST(voucher_id AS SIGNED) AS voucher_id, COALESCE(s.strategy, '') AS strategy, \
             CAST(s.issued AS SIGNED) AS issued, CAST(COALESCE(s.stock, 0) + (SELECT COUNT(*) FROM tb_stock_unit u \
               WHERE u.voucher_id = v.voucher_id) AS SIGNED) AS stock, \
             COALESCE(o.orders, 0) AS orders, COALESCE(o.cancelled, 0) AS cancelled, \
             COALESCE(o.buyers, 0) AS buyers, COALESCE(o.skipped_by_index, 0) AS skipped_by_index, \
             COALESCE(o.outside_window, 0) AS outside_window, \
             COALESCE(r.undelivered, 0) AS undelivered, \
             COALESCE(r.undelivered_seconds, 0) AS undelivered_seconds \
             FROM (SELECT voucher_id FROM tb_seckill_voucher \
               UNION SELECT voucher_id FROM tb_voucher_order WHERE voucher_id NOT IN (0, id) \
               UNION SELECT voucher_id FROM tb_stock_return) v \
             LEFT JOIN tb_seckill_voucher s USING (voucher_id) \
             LEFT JOIN (SELECT voucher_id, \
               COUNT(CASE WHEN x.status <> 4 THEN 1 END) AS orders, \
               COUNT(CASE WHEN x.status = 4 THEN 1 END) AS cancelled, \
               COUNT(DISTINCT CASE WHEN x.status <> 4 THEN x.user_id END) AS buyers, \
               COUNT(CASE WHEN x.status <> 4 AND x.unguarded = 1 THEN 1 END) AS skipped_by_index, \
               COUNT(CASE WHEN x.status <> 4 AND (\
                 (x.create_time < w.begin_time \
                  AND CAST(x.id >> 32 AS SIGNED) + {} < UNIX_TIMESTAMP(w.begin_time)) \
                 OR (x.create_time >= w.end_time + INTERVAL {LATE_SECONDS} SECOND \
                  AND CAST(x.id >> 32 AS SIGNED) + {} >= UNIX_TIMESTAMP(w.end_time) + {LATE_SECONDS})) \
                 THEN 1 END) AS outside_window \
               FROM tb_voucher_order x LEFT JOIN tb_seckill_voucher w USING (voucher_id) \
               WHERE {is_asked} GROUP BY voucher_id) o USING (voucher_id) \
             LEFT JOIN (SELECT voucher_id, COUNT(*) AS undelivered, \
               CAST(TIMESTAMPDIFF(SECOND, MIN(create_time), NOW()) AS SIGNED) AS undelivered_seconds \
               FROM tb_stock_return GROUP BY voucher_id) r USING (voucher_id) \
             WHERE {is_asked} ORDER BY voucher_id",
            EPOCH_SECONDS - least,
            EPOCH_SECONDS - most
        );
        // Not bounded by the request limit: it reads every order there is, and no buyer waits for it.
        let mut connection = self.db.pool.acquire(self.db.pool.deadline()).await?;
        Ok(sqlx::query_as(&sql).fetch_all(&mut *connection).await?)
    }
}

/// The least and the most seconds that the zone is ahead of UTC in the year of `now`.
fn offsets(zone: Zone, now: DateTime<Utc>) -> (i64, i64) {
    let [january, july] = [1, 7].map(|month| {
        let day = Utc.with_ymd_and_hms(now.year(), month, 1, 0, 0, 0);
        let day = day.earliest().unwrap_or(now);
        (zone.to_local(day) - day.naive_utc()).num_seconds()
    });
    (january.min(july), january.max(july))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_span_summer_time() {
        let now = Utc::now();
        for (zone, expected) in [
            (chrono_tz::Asia::Shanghai, (28_800, 28_800)),
            (chrono_tz::Europe::Berlin, (3_600, 7_200)),
            (chrono_tz::America::New_York, (-18_000, -14_400)),
        ] {
            assert_eq!(offsets(Zone(zone), now), expected);
        }
    }
}
