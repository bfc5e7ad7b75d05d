//! [`OrderStore`]: the orders in the database, and how they are read.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::transaction::OrderTransaction;
use crate::clock::Zone;
use crate::connection::mysql::Database;
use crate::connection::row::{from_row, readable};
use crate::error::Error;
use crate::id::{EPOCH_SECONDS, local_time};
use crate::order::model::{Buyer, BuyerStatus, Order};

/// Orders on a page of `GET /voucher-order/of/me`.
const PAGE_SIZE: u32 = 10;

/// Orders in the database.
#[derive(Clone)]
pub struct OrderStore {
    pub(super) db: Database,
    /// The zone of times in replies, and of the day of order ids.
    pub(super) zone: Zone,
    /// How long after it was made an unpaid order expires, seconds; 0 for never. Only for what replies say.
    unpaid_seconds: u32,
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

    /// The same store; it tells of orders that they expire after so many seconds.
    pub fn with_expiry(self, unpaid_seconds: u32) -> Self {
        OrderStore {
            unpaid_seconds,
            ..self
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
        // `order_id` is the id as text.
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

    /// The local seconds since 1970, which order ids are made of, at an instant that is given in µs since 1970.
    pub fn local_seconds_at(&self, instant_us: i64) -> i64 {
        self.zone.seconds_at(instant_us)
    }

    /// The end of the second in the id. If clocks were turned back and this local second came twice, the end of the later one.
    pub fn drawn_at(&self, order_id: i64) -> DateTime<Utc> {
        drawn_at(self.zone, order_id)
    }

    /// A new transaction. Takes a connection from the pool, waiting for at most the time limit of one step, and sends
    /// nothing yet.
    pub async fn begin(&self) -> Result<OrderTransaction, Error> {
        OrderTransaction::begin(self.db.clone(), self.zone, None).await
    }

    /// As [`OrderStore::begin`], for a purchase: a commit that has not begun by `deadline` does not begin.
    pub async fn begin_until(&self, deadline: Instant) -> Result<OrderTransaction, Error> {
        OrderTransaction::begin(self.db.clone(), self.zone, Some(deadline)).await
    }

    /// One order, as last committed. If it is not found, nothing is known: it may be about to be committed.
    pub async fn find(&self, order_id: i64) -> Result<Option<Order>, Error> {
        let sql = format!("{} WHERE id = ?", self.select_orders());
        let query = sqlx::query_as(&sql).bind(order_id);
        let order = self
            .db
            .read(async |c| query.fetch_optional(c).await)
            .await?;
        Ok(order.map(|order| in_zone(self.zone, order)))
    }

    /// As [`OrderStore::find`], read from a server that takes writes.
    pub async fn find_current(&self, order_id: i64) -> Result<Option<Order>, Error> {
        let sql = format!("{} WHERE id = ?", self.select_orders());
        let query = sqlx::query_as(&sql).bind(order_id);
        let order = self
            .db
            .ask_primary(async |c| query.fetch_optional(c).await)
            .await?;
        Ok(order.map(|order| in_zone(self.zone, order)))
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
            .map(|order| in_zone(self.zone, order))
            .collect())
    }
}

from_row! { Order:
    id, order_id, user_id, voucher_id, pay_type, status;
    create_time, pay_time, use_time, refund_time, update_time, expire_time
}

/// See [`OrderStore::drawn_at`].
pub(super) fn drawn_at(zone: Zone, order_id: i64) -> DateTime<Utc> {
    zone.latest_utc(local_time(order_id)) + TimeDelta::seconds(1)
}

/// The order, whose columns are in UTC, with times in `zone`.
pub(super) fn in_zone(zone: Zone, mut order: Order) -> Order {
    let Order {
        create_time,
        pay_time,
        use_time,
        refund_time,
        update_time,
        expire_time,
        ..
    } = &mut order;
    let times = [
        create_time,
        pay_time,
        use_time,
        refund_time,
        update_time,
        expire_time,
    ];
    for time in times.into_iter().flatten() {
        *time = zone.to_local(time.and_utc());
    }
    order
}

/// Ids, one at least, as the text of an SQL `IN (…)` list: numbers between commas, so nothing needs to be escaped.
pub(super) fn id_list(ids: impl IntoIterator<Item = i64>) -> String {
    ids.into_iter()
        .map(|id| id.to_string())
        .collect::<Vec<_>>()
        .join(",")
}
