//! [`OrderStore`]: the orders in the database, and how they are read.

use std::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::FromRow;
use sqlx::mysql::MySqlRow;
use tokio::sync::Mutex;

use crate::clock::Zone;
use crate::connection::mysql::Database;
use crate::connection::row::{from_row, readable};
use crate::error::Error;
use crate::id::{EPOCH_SECONDS, local_time};
use crate::order::model::{Buyer, BuyerStatus, Order};

/// Orders on a page of `GET /voucher-order/of/me`.
const PAGE_SIZE: u32 = 10;

/// Ids in one statement.
pub(super) const IDS: usize = 10_000;

/// Orders of each status whose ids are compared with their `create_time`.
const DATED: i64 = 200;

/// Orders in the database.
#[derive(Clone)]
pub struct OrderStore {
    pub(super) db: Database,
    /// The zone of times in replies, and of the day of order ids.
    pub zone: Zone,
    /// How long after it was made an unpaid order expires, seconds; 0 for never. Only for what replies say.
    pub unpaid_seconds: u32,
    /// Held by a probe, so that they run one at a time.
    pub(super) probing: Arc<Mutex<()>>,
}

impl OrderStore {
    /// A store on this database, giving times in this zone.
    pub fn new(db: Database, zone: Zone) -> Self {
        OrderStore {
            db,
            zone,
            unpaid_seconds: 0,
            probing: Arc::default(),
        }
    }

    /// Selects orders, as replies show them. Existing tables differ in signedness, and in what may be NULL.
    pub(super) fn select_orders(&self) -> String {
        let expire_time = match self.unpaid_seconds {
            0 => "NULL".to_owned(),
            seconds => format!(
                "CASE WHEN status IN (1, 4) THEN create_time + INTERVAL {seconds} SECOND END"
            ),
        };
        format!(
            "SELECT CAST(id AS SIGNED) AS id, CAST(id AS CHAR) AS order_id, \
             CAST(COALESCE(user_id, 0) AS SIGNED) AS user_id, CAST(COALESCE(voucher_id, 0) AS SIGNED) AS voucher_id, \
             CAST(COALESCE(pay_type, 1) AS SIGNED) AS pay_type, CAST(COALESCE(status, 1) AS SIGNED) AS status, \
             create_time, pay_time, use_time, refund_time, update_time, {expire_time} AS expire_time \
             FROM tb_voucher_order"
        )
    }

    /// The stock and the buyer's order, in one round trip and outside any transaction. `None` where there is no such
    /// sale.
    pub async fn buyer_status(&self, buyer: Buyer) -> Result<Option<BuyerStatus>, Error> {
        let query = sqlx::query_as::<_, (i64, Option<i64>)>(
            "SELECT CAST(s.stock AS SIGNED) AS stock, \
             (SELECT CAST(o.id AS SIGNED) FROM tb_voucher_order o WHERE o.user_id = ? AND o.voucher_id = s.voucher_id \
              AND o.status <> 4 LIMIT 1) AS order_id \
             FROM tb_seckill_voucher s WHERE s.voucher_id = ?",
        )
        .bind(buyer.user_id)
        .bind(buyer.voucher_id);
        let row = self
            .db
            .read(async |c| query.fetch_optional(c).await)
            .await?;
        Ok(row.map(|(stock, order_id)| BuyerStatus { stock, order_id }))
    }

    /// The longest that one step may take.
    pub fn time_limit(&self) -> Duration {
        self.db.timeout
    }

    /// This node's clock, in the seconds that order ids are made of.
    pub fn local_seconds(&self) -> i64 {
        self.zone.now().and_utc().timestamp() - EPOCH_SECONDS
    }

    /// The end of the second in the id. If clocks were turned back and this local second came twice, the end of the later one.
    pub fn drawn_at(&self, order_id: i64) -> DateTime<Utc> {
        self.zone.latest_utc(local_time(order_id)) + TimeDelta::seconds(1)
    }

    /// One order, as last committed. If it is not found, nothing is known: it may be about to be committed.
    pub async fn find(&self, order_id: i64) -> Result<Option<Order>, Error> {
        let sql = format!("{} WHERE id = ?", self.select_orders());
        let query = sqlx::query_as(&sql).bind(order_id);
        let order = self
            .db
            .read(async |c| query.fetch_optional(c).await)
            .await?;
        Ok(order.map(|order| self.in_zone(order)))
    }

    /// As [`OrderStore::find`], read from a server that takes writes.
    pub async fn find_current(&self, order_id: i64) -> Result<Option<Order>, Error> {
        let sql = format!("{} WHERE id = ?", self.select_orders());
        let query = sqlx::query_as(&sql).bind(order_id);
        let order = self
            .db
            .ask_primary(async |c| query.fetch_optional(c).await)
            .await?;
        Ok(order.map(|order| self.in_zone(order)))
    }

    /// The newest orders by the offset from UTC, in seconds, that their ids were made with: the local seconds in the id less
    /// the instant of the row's `create_time`, rounded to a quarter of an hour. As (offset, orders), the most orders first.
    pub async fn offsets_of_ids(&self) -> Result<Vec<(i64, i64)>, Error> {
        // Unpaid and paid ones, by status as the index has them; a Java node's stay unpaid.
        let sql = format!(
            "SELECT CAST(ROUND((CAST(id >> 32 AS SIGNED) + {EPOCH_SECONDS} - UNIX_TIMESTAMP(create_time)) / 900) * 900 \
             AS SIGNED) AS ahead, COUNT(*) FROM (\
             (SELECT id, create_time FROM tb_voucher_order WHERE status = 1 \
              ORDER BY create_time DESC LIMIT {DATED}) \
             UNION ALL \
             (SELECT id, create_time FROM tb_voucher_order WHERE status = 2 \
              ORDER BY create_time DESC LIMIT {DATED})\
             ) newest WHERE UNIX_TIMESTAMP(create_time) > 0 GROUP BY ahead ORDER BY 2 DESC, 1",
        );
        let query = sqlx::query_as(&sql);
        Ok(self.db.read(async |c| query.fetch_all(c).await).await?)
    }

    /// A page of a user's orders, newest first; pages count from 1.
    pub async fn page_of_user(&self, user_id: i64, page: u32) -> Result<Vec<Order>, Error> {
        let sql = format!(
            "{} WHERE user_id = ? AND voucher_id NOT IN (0, id) \
             ORDER BY tb_voucher_order.id DESC LIMIT ? OFFSET ?",
            self.select_orders()
        );
        let offset = u64::from(page.saturating_sub(1)) * u64::from(PAGE_SIZE);
        let query = sqlx::query(&sql).bind(user_id).bind(PAGE_SIZE).bind(offset);
        let rows = self.db.read(async |c| query.fetch_all(c).await).await?;
        Ok(readable("tb_voucher_order", &rows)
            .into_iter()
            .map(|order| self.in_zone(order))
            .collect())
    }

    /// The order, whose columns are in UTC, with times in the store's zone.
    pub(super) fn in_zone(&self, mut order: Order) -> Order {
        let times = [
            &mut order.create_time,
            &mut order.pay_time,
            &mut order.use_time,
            &mut order.refund_time,
            &mut order.update_time,
            &mut order.expire_time,
        ];
        for time in times.into_iter().flatten() {
            *time = self.zone.to_local(time.and_utc());
        }
        order
    }
}

from_row! { Order:
    id, order_id, user_id, voucher_id, pay_type, status;
    create_time, pay_time, use_time, refund_time, update_time, expire_time
}

/// What is read of an order's row where only the decision counts.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // columns under their names
pub struct OrderRow {
    pub id: i64,
    pub buyer: Buyer,
    /// Whether it is not cancelled.
    pub is_live: bool,
}

/// Selects rows to be read as [`OrderRow`]; the condition follows.
pub(super) const SELECT_ROWS: &str = "SELECT CAST(id AS SIGNED), \
    CAST(COALESCE(user_id, 0) AS SIGNED), CAST(COALESCE(voucher_id, 0) AS SIGNED), \
    CAST(COALESCE(status, 1) AS SIGNED) FROM tb_voucher_order WHERE";

impl FromRow<'_, MySqlRow> for OrderRow {
    fn from_row(row: &MySqlRow) -> sqlx::Result<Self> {
        let (id, user_id, voucher_id, status): (_, _, _, i64) = FromRow::from_row(row)?;
        let buyer = Buyer {
            user_id,
            voucher_id,
        };
        let is_live = status != 4;
        Ok(OrderRow { id, buyer, is_live })
    }
}

/// Ids, one at least, as the text of an SQL `IN (…)` list: numbers between commas, so nothing needs to be escaped.
pub(super) fn id_list(ids: impl IntoIterator<Item = impl Borrow<i64>>) -> String {
    ids.into_iter()
        .map(|id| id.borrow().to_string())
        .collect::<Vec<_>>()
        .join(",")
}
