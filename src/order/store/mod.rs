//! The SQL of orders. Reads are here; what a purchase writes is in [`ledger`], every conditional
//! statement one function; what a batch of purchases writes in [`batch`]; what becomes of an
//! order afterwards in [`lifetime`]; what the stream asks in [`stream`]; what the audit adds up in
//! [`totals`].

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use sqlx::FromRow;

use super::model::{Buyer, NewOrder, Order};
use super::steps;
use crate::clock::Zone;
use crate::connection::mysql::Database;
use crate::error::Error;
use crate::request::trace;

pub mod batch;
pub mod ledger;
pub mod lifetime;
pub mod stream;
pub mod totals;

pub use ledger::{Ledger, Placed};

/// Pause between two looks at an order whose commit is in doubt.
const RESOLVE_PAUSE: Duration = Duration::from_millis(100);

/// Orders on a page of `GET /voucher-order/of/me`.
const PAGE_SIZE: u32 = 10;

/// Where a buyer stands in a sale, read at one moment outside any transaction.
#[derive(Debug, FromRow)]
pub struct Standing {
    /// Left to sell.
    pub stock: i64,
    /// The buyer's order that is not cancelled, if any.
    pub order_id: Option<i64>,
}

/// Orders in the database.
#[derive(Clone)]
pub struct OrderStore {
    db: Database,
    zone: Zone,
}

impl OrderStore {
    /// A store on this database, giving times in this zone.
    pub fn new(db: Database, zone: Zone) -> Self {
        OrderStore { db, zone }
    }

    /// Stock and the buyer's order, in one round trip. `None` where there is no such sale.
    pub async fn standing(&self, buyer: Buyer) -> Result<Option<Standing>, Error> {
        let query = sqlx::query_as(
            "SELECT CAST(s.stock AS SIGNED) AS stock, \
             (SELECT o.id FROM tb_voucher_order o WHERE o.user_id = ? AND o.voucher_id = s.voucher_id \
              AND o.status <> 4 LIMIT 1) AS order_id \
             FROM tb_seckill_voucher s WHERE s.voucher_id = ?",
        )
        .bind(buyer.user_id)
        .bind(buyer.voucher_id);
        Ok(self.db.bounded(query.fetch_optional(&self.db.pool)).await?)
    }

    /// Opens a transaction.
    pub async fn begin(&self) -> Result<Ledger, Error> {
        Ledger::open(&self.db).await
    }

    /// Opens a transaction and does in it all that an order needs, in one round trip. To be committed where
    /// it is [`Placed::Taken`], else to be taken back.
    pub async fn begin_placed(&self, order: &NewOrder) -> Result<(Ledger, Placed), Error> {
        trace::step(Ledger::open_placed(&self.db, order), steps::placed).await
    }

    /// Commits, and finds out what became of it where the reply was lost: any order of the
    /// transaction tells, by its id. [`Error::Unavailable`] is definite: nothing was done.
    /// [`Error::OutcomeUnknown`] only where the database could not be asked for as long as one step
    /// may take; the first tries may meet connections that died with the one that was to commit.
    pub async fn commit(&self, ledger: Ledger, order_id: i64) -> Result<(), Error> {
        trace::step(self.commit_for_certain(ledger, order_id), steps::committed).await
    }

    async fn commit_for_certain(&self, ledger: Ledger, order_id: i64) -> Result<(), Error> {
        match ledger.commit(order_id).await {
            Err(Error::OutcomeUnknown(_)) => {}
            outcome => return outcome,
        }
        let deadline = Instant::now() + self.db.timeout;
        loop {
            match self.is_committed(order_id).await {
                Ok(true) => return Ok(()),
                Ok(false) => return Err(Error::Unavailable("the database")),
                Err(_) if Instant::now() < deadline => tokio::time::sleep(RESOLVE_PAUSE).await,
                Err(_) => return Err(Error::OutcomeUnknown(Some(order_id))),
            }
        }
    }

    /// Whether an order with this id was committed, waiting for any transaction that may still
    /// decide it: a locking read on a row that is being inserted does not return until that
    /// transaction has ended. For resolving a commit whose outcome is unknown.
    async fn is_committed(&self, order_id: i64) -> Result<bool, Error> {
        let query = sqlx::query_scalar::<_, i64>(
            "SELECT id FROM tb_voucher_order WHERE id = ? LOCK IN SHARE MODE",
        )
        .bind(order_id);
        let found = self.db.bounded(query.fetch_optional(&self.db.pool)).await?;
        Ok(found.is_some())
    }

    /// The users who have an order of a sale on a strategy that holds, in rising order; `None` where
    /// there are more than `limit`.
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
    pub async fn of_user(&self, user_id: i64, page: u32) -> Result<Vec<Order>, Error> {
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

#[derive(FromRow)]
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
