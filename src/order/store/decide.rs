//! An id is decided by one row, under the primary key: the order, or its *refusal*.
//!
//! A refusal has the order's id and user, that id as its voucher too, and the status *cancelled*. The primary key lets either
//! the order or its refusal exist, never both, on every server. The unique index does not see a refusal, because `buyer` is NULL
//! there, and a Java node that looks for an order of this user and voucher does not find it. If all refusals had one voucher, such
//! as 0, a user's second refusal would be refused itself where a table has `UNIQUE (user_id, voucher_id)`.
//!
//! So "no" is never concluded from what a read does not find. Whoever lost the reply to a commit inserts the refusal
//! ([`OrderTransaction::decided`]); a look-up, which never writes, tries whether it could be inserted
//! ([`OrderStore::probe`]). An INSERT waits for a transaction that has inserted a row under the same key, whatever the
//! server's locking reads do. Both are one text that also ends its transaction: an open one would hold up the inserts of others.

use std::collections::{BTreeMap, HashMap};
use std::slice;

use chrono::{DateTime, TimeDelta, Utc};
use tokio::time::timeout_at;

use super::orders::{OrderRow, OrderStore, SELECT_ROWS, id_list};
use super::transaction::OrderTransaction;
use crate::error::{Cause, Error};
use crate::order::model::{NewOrder, Order};

/// This long after the second in its id, no order commits any more, by the database's clock:
/// [`super::commit::COMMITS_WITHIN`], and ten seconds by which clocks may step back.
const SETTLED_AFTER: TimeDelta = TimeDelta::seconds(30);

impl OrderTransaction {
    /// Decides by this order what became of the transaction; any order will do that the transaction was to leave as a row.
    /// Returns the order's id, or `error` if the order does not exist and never will. The database is asked again and again, for
    /// as long as one step may take: the first tries may meet connections that died with the one that was to commit, or conflict
    /// with somebody who decides the same order. To be boxed: it is rare, and every purchase's future would have room for it.
    pub async fn decided(self, order: &NewOrder, error: Error) -> Result<i64, Error> {
        let store = self.store.clone();
        // Closes the connection, so that the server ends the transaction.
        drop(self);
        let refusing = store
            .db
            .ask_until_answered(|| store.refuse(slice::from_ref(order)));
        let rows = refusing.await.unwrap_or_default();
        match rows.get(&order.id) {
            Some(row) if row.buyer == order.buyer => Ok(order.id),
            Some(_) => Err(error),
            // The database could not be asked, or IGNORE has hidden that a foreign key or a check refused the row.
            None => Err(Error::OutcomeUnknown(Some(order.id))),
        }
    }
}

impl OrderStore {
    /// Refuses those of `orders`, one at least, that have no row yet. Returns the rows that are then under their ids, by id.
    ///
    /// # Errors
    /// Nothing is known; to be tried again.
    pub async fn refuse(&self, orders: &[NewOrder]) -> Result<HashMap<i64, OrderRow>, Error> {
        let users = orders.iter().map(|order| (order.id, order.buyer.user_id));
        // By id, so that two who refuse the same orders do not wait for each other's rows.
        let users: BTreeMap<i64, i64> = users.collect();
        let refusals: Vec<String> = users
            .iter()
            .map(|(id, user_id)| format!("({id},{user_id},{id},4)"))
            .collect();
        let text = format!(
            "INSERT IGNORE INTO tb_voucher_order (id, user_id, voucher_id, status) VALUES {}; \
             {SELECT_ROWS} id IN ({}); COMMIT",
            refusals.join(","),
            id_list(users.keys()),
        );
        let mut transaction = self.begin().await?;
        let [_, rows, _] = transaction.run(&text).await?;
        transaction.ended();
        let rows: Vec<OrderRow> = rows.all()?;
        Ok(rows.into_iter().map(|row| (row.id, row)).collect())
    }

    /// Finds the order or refusal under this id; `None` if there will never be one. Writes nothing. On servers whose locking
    /// reads see rows that are not committed, waits for no transaction. Probes run one at a time: two of the same id would be in
    /// each other's way, and strangers may ask for any id.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if it is not certain: a transaction that has inserted the order has not ended, a text may be on
    /// its way whose deadline is not over, or the server takes no writes.
    pub async fn probe(&self, order_id: i64, user_id: i64) -> Result<Option<Order>, Error> {
        let drawn_at = self.drawn_at(order_id);
        let sql_time = |time: DateTime<Utc>| time.format("%Y-%m-%d %H:%M:%S");
        // No clock is a day ahead: an id of a later time was drawn by nobody.
        let text = format!(
            "{} WHERE id = {order_id} FOR UPDATE NOWAIT; \
             INSERT IGNORE INTO tb_voucher_order (id, user_id, voucher_id, status) \
             SELECT {order_id}, {user_id}, {order_id}, 4 FROM DUAL \
             WHERE UTC_TIMESTAMP(6) NOT BETWEEN '{}' AND '{}'; ROLLBACK",
            self.select_orders(),
            sql_time(drawn_at - TimeDelta::days(1)),
            sql_time(drawn_at + SETTLED_AFTER),
        );
        let deadline = self.db.pool.deadline();
        let Ok(_turn) = timeout_at(deadline, self.probing.lock()).await else {
            return Err(Error::Unavailable(Cause::OrderUndecided));
        };
        let connection = self.db.pool.acquire_writable(deadline).await?;
        let mut transaction = self.transaction_on(connection, deadline);
        let [found, refusal, _] = match transaction.run(&text).await {
            Err(Error::Conflict) => {
                transaction.rollback().await?;
                return Err(Error::Unavailable(Cause::OrderUndecided));
            }
            replies => replies?,
        };
        transaction.ended();
        match found.all::<Order>()?.pop() {
            Some(order) => Ok(Some(self.in_zone(order))),
            None if refusal.changed == 1 => Ok(None),
            None => Err(Error::Unavailable(Cause::OrderUndecided)),
        }
    }
}
