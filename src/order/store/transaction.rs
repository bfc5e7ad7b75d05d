//! One purchase's database transaction: each statement that a strategy may run in it is a method.
//!
//! Statements are sent as text, several of them in one request if nothing has to be decided between them: the protocol
//! cannot send prepared statements together. Only integers are put into a text. The first request also opens the
//! transaction; [`OrderStore::begin`] sends nothing. How a transaction commits is in [`super::commit`].

use std::{mem, slice};

use futures_util::StreamExt;
use sqlx::mysql::MySqlRow;
use sqlx::{Either, FromRow, Row, raw_sql};
use tokio::time::Instant;

use super::orders::OrderStore;
use crate::connection::pool::PooledConnection;
use crate::connection::server_error::is_duplicate;
use crate::error::Error;
use crate::order::model::{Buyer, BuyerStatus, NewOrder};
use crate::order::steps;
use crate::request::trace;

/// Begins a transaction. ROLLBACK comes first because START TRANSACTION would commit a transaction that is still open.
const BEGIN: &str = "ROLLBACK; START TRANSACTION; ";
const BEGIN_STATEMENTS: usize = 2;

/// A transaction at READ COMMITTED on one connection. To be ended by [`OrderTransaction::commit_with`] or
/// [`OrderTransaction::rollback`]. Dropped open, by an error, a time-out or a panic, it closes its connection, and the
/// server rolls back, whatever state the protocol is in: what fails before the commit made no order.
pub struct OrderTransaction {
    pub(super) store: OrderStore,
    connection: PooledConnection,
    /// All statements before the commit share this time limit; after it, the commit does not begin.
    pub(super) deadline: Instant,
    /// Whether `START TRANSACTION` was sent.
    begun: bool,
}

/// What became of statements that were sent together.
pub(super) struct Sent {
    /// The replies to those that succeeded.
    pub replies: Vec<Reply>,
    /// Why the next one failed; the rest was not run.
    pub error: Option<sqlx::Error>,
}

/// The reply to one statement.
pub(super) struct Reply {
    /// How many rows it changed.
    pub changed: u64,
    rows: Vec<MySqlRow>,
}

impl Reply {
    /// All its rows.
    pub(super) fn all<T>(&self) -> Result<Vec<T>, Error>
    where
        T: for<'r> FromRow<'r, MySqlRow>,
    {
        let rows = self.rows.iter().map(T::from_row);
        Ok(rows.collect::<sqlx::Result<_>>()?)
    }

    /// The number in the first row and column.
    pub(super) fn number(&self) -> Result<Option<i64>, Error> {
        Ok(self.rows.first().map(|row| row.try_get(0)).transpose()?)
    }
}

impl OrderStore {
    /// A new transaction. Takes a connection from the pool, waiting for at most the time limit of one step, and sends
    /// nothing yet.
    pub async fn begin(&self) -> Result<OrderTransaction, Error> {
        self.begin_until(self.db.pool.deadline()).await
    }

    /// As [`OrderStore::begin`], for a purchase: a commit that has not begun by `deadline` does not begin.
    pub async fn begin_until(&self, deadline: Instant) -> Result<OrderTransaction, Error> {
        let deadline = deadline.min(self.db.pool.deadline());
        let connection = self.db.pool.acquire_for_writes(deadline).await?;
        Ok(self.transaction_on(connection, deadline))
    }

    /// A transaction on this connection of the pool.
    pub(super) fn transaction_on(
        &self,
        connection: PooledConnection,
        deadline: Instant,
    ) -> OrderTransaction {
        OrderTransaction {
            store: self.clone(),
            connection,
            deadline,
            begun: false,
        }
    }
}

impl OrderTransaction {
    /// Inserts the order unless the buyer has a committed one already; says whether it did. Two calls at the same time can both
    /// insert an order of one buyer.
    ///
    /// # Errors
    /// Those of [`OrderTransaction::insert`].
    pub async fn insert_if_first(&mut self, order: &NewOrder) -> Result<bool, Error> {
        let insert = insert_if_first_sql(order);
        let inserting = self.insert_by(order, &insert);
        Ok(trace::step(inserting, steps::inserted_if_first).await? > 0)
    }

    /// Inserts the order.
    ///
    /// # Errors
    /// Where a unique key refuses it, the transaction is rolled back.
    pub async fn insert(&mut self, order: &NewOrder) -> Result<(), Error> {
        let insert = insert_sql(order);
        let inserting = self.insert_by(order, &insert);
        trace::step(inserting, steps::ended("inserted"))
            .await
            .map(drop)
    }

    async fn insert_by(&mut self, order: &NewOrder, statement: &str) -> Result<u64, Error> {
        let Sent { replies, error } = self.send(statement).await;
        match error {
            None => Ok(replies.first().map_or(0, |reply| reply.changed)),
            Some(error) if is_duplicate(&error) => {
                let found = self.roll_back_and_find(slice::from_ref(order)).await?;
                Err(match found.outcome_of(order, true) {
                    Some(Ok(_)) => Error::DuplicateId,
                    Some(Err(refusal)) => refusal,
                    None => Error::Conflict,
                })
            }
            Some(error) => Err(error.into()),
        }
    }

    /// Takes one from the stock whether there is one or not: the mistake of the naive strategy.
    pub async fn decrement(&mut self, voucher_id: i64) -> Result<(), Error> {
        let update = format!(
            "UPDATE tb_seckill_voucher SET stock = stock - 1 WHERE voucher_id = {voucher_id}"
        );
        trace::step(self.change(&update), steps::decremented)
            .await
            .map(drop)
    }

    /// The stock as last committed, without locking it.
    pub async fn stock(&mut self, voucher_id: i64) -> Result<Option<i64>, Error> {
        let stock = stock_sql(voucher_id);
        trace::step(self.number(&stock), steps::read_stock).await
    }

    /// Takes one if the stock is still `expected`; says whether it was.
    pub async fn decrement_if_stock_is(
        &mut self,
        voucher_id: i64,
        expected: i64,
    ) -> Result<bool, Error> {
        let update = format!(
            "UPDATE tb_seckill_voucher SET stock = stock - 1 \
             WHERE voucher_id = {voucher_id} AND stock = {expected}"
        );
        Ok(trace::step(self.change(&update), steps::decremented).await? > 0)
    }

    /// Locks the sale's row until this transaction ends; returns its stock.
    pub async fn lock_stock(&mut self, voucher_id: i64) -> Result<i64, Error> {
        let lock = format!("{} FOR UPDATE", stock_sql(voucher_id));
        self.number(&lock).await?.ok_or(Error::VoucherNotFound)
    }

    /// Locks the sale's row until this transaction ends, then reads the buyer's status: one round trip.
    pub async fn lock_sale(&mut self, buyer: Buyer) -> Result<BuyerStatus, Error> {
        // Two statements: under READ COMMITTED the second sees what was committed before the lock was won, which a
        // subquery of the locking statement might not.
        let statements = format!(
            "{} FOR UPDATE; SELECT CAST(id AS SIGNED) FROM tb_voucher_order \
             WHERE user_id = {} AND voucher_id = {} AND status <> 4 LIMIT 1",
            stock_sql(buyer.voucher_id),
            buyer.user_id,
            buyer.voucher_id
        );
        let locking = async {
            let [stock, order] = self.run(&statements).await?;
            Ok(BuyerStatus {
                stock: stock.number()?.ok_or(Error::VoucherNotFound)?,
                order_id: order.number()?,
            })
        };
        trace::step(locking, steps::row_locked).await
    }

    /// Undoes everything.
    pub async fn rollback(mut self) -> Result<(), Error> {
        if self.begun {
            let [_] = self.run("ROLLBACK").await?;
        }
        self.ended();
        Ok(())
    }

    /// The transaction was rolled back by a statement that was answered: what is sent next opens another one.
    pub(super) fn rolled_back(&mut self) {
        self.begun = false;
        self.connection.answered();
    }

    /// The transaction is committed or rolled back for certain: the connection can be used again.
    pub(super) fn ended(mut self) {
        self.connection.answered();
    }

    /// Sends statements as one text. The first text also opens the transaction. The server runs the statements up to the first
    /// that fails.
    pub(super) async fn send(&mut self, statements: &str) -> Sent {
        let begins = !mem::replace(&mut self.begun, true);
        let begin = if begins { BEGIN } else { "" };
        let text = format!("{begin}{statements}");
        let mut replies = Vec::with_capacity(4);
        let running = async {
            let mut rows = Vec::new();
            let mut results = raw_sql(&text).fetch_many(&mut *self.connection);
            while let Some(result) = results.next().await {
                match result? {
                    Either::Left(done) => replies.push(Reply {
                        changed: done.rows_affected(),
                        rows: mem::take(&mut rows),
                    }),
                    Either::Right(row) => rows.push(row),
                }
            }
            Ok(())
        };
        let error = self.store.db.until(self.deadline, running).await.err();
        if matches!(&error, Some(error) if error.as_database_error().is_none()) {
            self.connection.give_up();
        }
        if begins {
            replies.drain(..BEGIN_STATEMENTS.min(replies.len()));
        }
        Sent { replies, error }
    }

    /// Sends `N` statements of which none may fail; returns the reply to each.
    ///
    /// # Errors
    /// The error of the statement that failed.
    pub(super) async fn run<const N: usize>(
        &mut self,
        statements: &str,
    ) -> Result<[Reply; N], Error> {
        let Sent { replies, error } = self.send(statements).await;
        if let Some(error) = error {
            return Err(error.into());
        }
        let count = replies.len();
        replies
            .try_into()
            .map_err(|_| Error::Internal(format!("{N} statements gave {count} results")))
    }

    /// Runs one change; returns the rows that it changed.
    pub(super) async fn change(&mut self, statement: &str) -> Result<u64, Error> {
        let [reply] = self.run(statement).await?;
        Ok(reply.changed)
    }

    pub(super) async fn rows<T>(&mut self, query: &str) -> Result<Vec<T>, Error>
    where
        T: for<'r> FromRow<'r, MySqlRow>,
    {
        let [reply] = self.run(query).await?;
        reply.all()
    }

    /// Runs one query; returns the number in its first row and column.
    async fn number(&mut self, query: &str) -> Result<Option<i64>, Error> {
        let [reply] = self.run(query).await?;
        reply.number()
    }
}

pub(super) fn stock_sql(voucher_id: i64) -> String {
    format!("SELECT CAST(stock AS SIGNED) FROM tb_seckill_voucher WHERE voucher_id = {voucher_id}")
}

pub(super) fn insert_sql(order: &NewOrder) -> String {
    format!(
        "INSERT INTO tb_voucher_order (id, user_id, voucher_id, unguarded) \
         VALUES ({id}, {user_id}, {voucher_id}, {unguarded})",
        id = order.id,
        user_id = order.buyer.user_id,
        voucher_id = order.buyer.voucher_id,
        unguarded = u8::from(order.unguarded)
    )
}

pub(super) fn insert_if_first_sql(order: &NewOrder) -> String {
    // `buyer` is the user of a guarded order that is not cancelled. The unique index on both columns finds at most one row, so
    // the server has nothing to plan; that saves an eighth of its time for an order.
    let (user, status) = if order.unguarded {
        ("user_id", " AND status <> 4")
    } else {
        ("buyer", "")
    };
    format!(
        "INSERT INTO tb_voucher_order (id, user_id, voucher_id, unguarded) \
         SELECT {id}, {user_id}, {voucher_id}, {unguarded} FROM DUAL WHERE NOT EXISTS \
         (SELECT 1 FROM tb_voucher_order \
         WHERE {user} = {user_id} AND voucher_id = {voucher_id}{status})",
        id = order.id,
        user_id = order.buyer.user_id,
        voucher_id = order.buyer.voucher_id,
        unguarded = u8::from(order.unguarded)
    )
}
