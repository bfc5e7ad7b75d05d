//! An id is decided by one row, under the primary key: the order, or its *refusal*.
//!
//! A refusal has the order's id and user, that id as its voucher too, and the status *cancelled*. The primary key lets either
//! the order or its refusal exist, never both, on every server. The unique index does not see a refusal, because `buyer` is NULL
//! there, and a Java node that looks for an order of this user and voucher does not find it. If all refusals had one voucher, such
//! as 0, a user's second refusal would be refused itself where a table has `UNIQUE (user_id, voucher_id)`.
//!
//! So "no" is never concluded from what a read does not find. Whoever lost the reply to a commit inserts the refusal
//! (`OrderStore::decide`); a look-up, which never writes, tries whether it could be inserted ([`OrderStore::probe`]). An INSERT waits for
//! a transaction that has inserted a row under the same key, whatever the server's locking reads do. Both are one
//! text that also ends its transaction: an open one would hold up the inserts of others.

use std::collections::HashMap;
use std::slice;

use chrono::{DateTime, TimeDelta, Utc};
use tokio::time::timeout_at;

use super::count::{rows_by_id, rows_sql};
use super::orders::{OrderStore, drawn_at, in_zone};
use super::transaction::{OrderTransaction, Sent};
use crate::error::{Cause, Error};
use crate::order::model::{Buyer, NewOrder, Order, is_refusal};

/// This long after the second in its id, no order commits any more, by the database's clock:
/// [`super::commit::COMMITS_WITHIN`], and ten seconds by which clocks may step back.
const SETTLED_AFTER: TimeDelta = TimeDelta::seconds(30);

/// An id that is further ahead than this was drawn by nobody.
const NO_CLOCK_IS_AHEAD: TimeDelta = TimeDelta::days(1);

/// What became of a transaction whose reply was lost.
pub(super) enum Decision {
    Ordered,
    /// Its order does not exist, and never will.
    Refused,
    /// The database could not be asked.
    Unknown,
}

/// What a server that takes writes has under an order's id.
#[derive(Debug)]
pub enum Probe {
    /// A row.
    Order(Order),
    /// None, and there will never be one.
    Nothing,
}

/// Whether the row under an order's id, which names this buyer, is the order's refusal.
pub fn is_refusal_of(order: &NewOrder, row: Buyer) -> bool {
    row.user_id == order.buyer.user_id && is_refusal(order.id, row.voucher_id)
}

impl OrderStore {
    /// Decides by one order what became of a transaction; any order will do that the transaction was to leave as a row. The
    /// database is asked again and again, for as long as one step may take: the first tries may meet connections that died
    /// with the one that was to commit, or conflict with somebody who decides the same order.
    pub(super) async fn decide(&self, order: &NewOrder) -> Decision {
        let refusing = self
            .db
            .ask_until_answered(|| self.refuse(slice::from_ref(order)));
        let row = refusing.await.ok().and_then(|rows| {
            let (buyer, _) = rows.get(&order.id)?;
            Some(*buyer)
        });
        match row {
            Some(buyer) if buyer == order.buyer => Decision::Ordered,
            Some(_) => Decision::Refused,
            // IGNORE also hides that a foreign key or a check refused the row.
            None => Decision::Unknown,
        }
    }

    /// Refuses those of `orders` that have no row yet. Returns the rows that are then under their ids: whose each is, and
    /// whether it is not cancelled.
    ///
    /// # Errors
    /// Nothing is known; to be tried again.
    pub async fn refuse(&self, orders: &[NewOrder]) -> Result<HashMap<i64, (Buyer, bool)>, Error> {
        if orders.is_empty() {
            return Ok(HashMap::new());
        }
        let mut sorted = orders.to_vec();
        sorted.sort_unstable_by_key(|order| order.id);
        let refusals: Vec<String> = sorted
            .iter()
            .map(|order| format!("({0},{1},{0},4)", order.id, order.buyer.user_id))
            .collect();
        let text = format!(
            "INSERT IGNORE INTO tb_voucher_order (id, user_id, voucher_id, status) VALUES {}; {}; COMMIT",
            refusals.join(","),
            rows_sql(&sorted),
        );
        let mut transaction = self.begin().await?;
        let replies = transaction.run(&text).await?;
        transaction.ended();
        match replies.get(1) {
            Some(rows) => rows_by_id(rows),
            None => Err(Error::Internal("a refusal gave no rows".to_owned())),
        }
    }

    /// Finds the row under this id, or that there will never be one. Writes nothing. On servers whose locking reads see rows
    /// that are not committed, waits for no transaction. Probes run one at a time: two of the same id would be in each
    /// other's way, and strangers may ask for any id.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if it is not certain: a transaction that has inserted the order has not ended, a text may be on
    /// its way whose deadline is not over, or the server takes no writes.
    pub async fn probe(&self, order_id: i64, user_id: i64) -> Result<Probe, Error> {
        let drawn_at = drawn_at(self.zone, order_id);
        let sql_time = |time: DateTime<Utc>| time.format("%Y-%m-%d %H:%M:%S");
        let text = format!(
            "{} WHERE id = {order_id} FOR UPDATE NOWAIT; \
             INSERT IGNORE INTO tb_voucher_order (id, user_id, voucher_id, status) \
             SELECT {order_id}, {user_id}, {order_id}, 4 FROM DUAL \
             WHERE UTC_TIMESTAMP(6) NOT BETWEEN '{}' AND '{}'; ROLLBACK",
            self.select_orders(),
            sql_time(drawn_at - NO_CLOCK_IS_AHEAD),
            sql_time(drawn_at + SETTLED_AFTER),
        );
        let deadline = self.db.pool.deadline();
        let Ok(_turn) = timeout_at(deadline, self.probing.lock()).await else {
            return Err(Error::Unavailable(Cause::OrderUndecided));
        };
        let connection = self.db.pool.acquire_writable(deadline).await?;
        let mut transaction =
            OrderTransaction::on_connection(self.db.clone(), self.zone, connection, deadline);
        let Sent { replies, error } = transaction.send(&text).await;
        let error = error.map(Error::from);
        if let Some(Error::Conflict) = error {
            transaction.rollback().await?;
            return Err(Error::Unavailable(Cause::OrderUndecided));
        }
        if let Some(error) = error {
            return Err(error);
        }
        transaction.ended();
        let [found, refusal, _] = &replies[..] else {
            let count = replies.len();
            return Err(Error::Internal(format!("a probe gave {count} results")));
        };
        match found.all::<Order>()?.pop() {
            Some(order) => Ok(Probe::Order(in_zone(self.zone, order))),
            None if refusal.changed() == 1 => Ok(Probe::Nothing),
            None => Err(Error::Unavailable(Cause::OrderUndecided)),
        }
    }
}
