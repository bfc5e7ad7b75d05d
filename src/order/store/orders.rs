//! [`OrderStore`]: the orders in the database, and the reads of it.

use chrono::{DateTime, Utc};

use super::transaction::OrderTransaction;
use crate::clock::Zone;
use crate::connection::mysql::Database;
use crate::connection::row::row;
use crate::error::Error;
use crate::order::model::{Buyer, BuyerStatus, Order};

/// Orders on a page of `GET /voucher-order/of/me`.
const PAGE_SIZE: u32 = 10;

/// Orders in the database.
#[derive(Clone)]
pub struct OrderStore {
    pub(super) db: Database,
    zone: Zone,
}

impl OrderStore {
    /// A store on this database, giving times in this zone.
    pub fn new(db: Database, zone: Zone) -> Self {
        OrderStore { db, zone }
    }

    /// The stock and the buyer's order, in one round trip and outside any transaction. `None` where there is no such
    /// sale.
    pub async fn buyer_status(&self, buyer: Buyer) -> Result<Option<BuyerStatus>, Error> {
        let query = sqlx::query_as::<_, (i64, Option<i64>)>(
            "SELECT CAST(s.stock AS SIGNED) AS stock, \
             (SELECT o.id FROM tb_voucher_order o WHERE o.user_id = ? AND o.voucher_id = s.voucher_id \
              AND o.status <> 4 LIMIT 1) AS order_id \
             FROM tb_seckill_voucher s WHERE s.voucher_id = ?",
        )
        .bind(buyer.user_id)
        .bind(buyer.voucher_id);
        let row = self.db.bounded(query.fetch_optional(&self.db.pool)).await?;
        Ok(row.map(|(stock, order_id)| BuyerStatus { stock, order_id }))
    }

    /// A new transaction. Takes a connection from the pool and sends nothing yet.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where no connection was free within the time limit of one step.
    pub async fn begin(&self) -> Result<OrderTransaction, Error> {
        OrderTransaction::begin(self.db.clone()).await
    }

    /// The users who have an order that the unique index guards, in rising order; `None` where there are more than
    /// `limit`.
    pub async fn buyers(&self, voucher_id: i64, limit: u32) -> Result<Option<Vec<i64>>, Error> {
        let query = sqlx::query_scalar(
            // Read from the unique index alone, which also gives the order.
            "SELECT CAST(buyer AS SIGNED) FROM tb_voucher_order \
             WHERE voucher_id = ? AND buyer IS NOT NULL ORDER BY buyer LIMIT ?",
        )
        .bind(voucher_id)
        .bind(u64::from(limit) + 1);
        let buyers: Vec<i64> = self.db.bounded(query.fetch_all(&self.db.pool)).await?;
        Ok((buyers.len() <= limit as usize).then_some(buyers))
    }

    /// One order.
    pub async fn find(&self, order_id: i64) -> Result<Option<Order>, Error> {
        let sql = format!("{SELECT_ORDER} WHERE id = ?");
        let query = sqlx::query_as::<_, Row>(&sql).bind(order_id);
        let row = self.db.bounded(query.fetch_optional(&self.db.pool)).await?;
        Ok(row.map(|row| row.order(self.zone)))
    }

    /// A page of a user's orders, newest first; pages count from 1.
    pub async fn page_of_user(&self, user_id: i64, page: u32) -> Result<Vec<Order>, Error> {
        let sql = format!("{SELECT_ORDER} WHERE user_id = ? ORDER BY id DESC LIMIT ? OFFSET ?");
        let offset = u64::from(page.saturating_sub(1)) * u64::from(PAGE_SIZE);
        let query = sqlx::query_as::<_, Row>(&sql).bind(user_id).bind(PAGE_SIZE).bind(offset);
        let rows = self.db.bounded(query.fetch_all(&self.db.pool)).await?;
        Ok(rows.into_iter().map(|row| row.order(self.zone)).collect())
    }
}

const SELECT_ORDER: &str = "SELECT id, CAST(user_id AS SIGNED) AS user_id, \
     CAST(voucher_id AS SIGNED) AS voucher_id, CAST(pay_type AS SIGNED) AS pay_type, \
     CAST(status AS SIGNED) AS status, create_time, pay_time, use_time, refund_time, update_time \
     FROM tb_voucher_order";

row! {
    struct Row {
        id: i64,
        user_id: i64,
        voucher_id: i64,
        pay_type: i64,
        status: i64,
        create_time: DateTime<Utc>,
        pay_time: Option<DateTime<Utc>>,
        use_time: Option<DateTime<Utc>>,
        refund_time: Option<DateTime<Utc>>,
        update_time: DateTime<Utc>,
    }
}

impl Row {
    fn order(self, zone: Zone) -> Order {
        let local = |at: Option<DateTime<Utc>>| at.map(|at| zone.to_local(at));
        Order {
            id: self.id,
            order_id: self.id.to_string(),
            user_id: self.user_id,
            voucher_id: self.voucher_id,
            pay_type: self.pay_type,
            status: self.status,
            create_time: zone.to_local(self.create_time),
            pay_time: local(self.pay_time),
            use_time: local(self.use_time),
            refund_time: local(self.refund_time),
            update_time: zone.to_local(self.update_time),
        }
    }
}
