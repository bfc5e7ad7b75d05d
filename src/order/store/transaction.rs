//! One purchase's database transaction: each statement that a strategy may run in it is a method.
//!
//! It is opened lazily. [`super::OrderStore::begin`] sends nothing; the first method sends `START TRANSACTION`,
//! and a method that is sent as text ([`OrderTransaction::insert_if_first`], [`OrderTransaction::insert_batch`]) sends it
//! in front of its own statements. So opening and inserting are one round trip.
//!
//! Its end is in [`super::commit`].
//!
//! Those methods are text because the protocol lets no prepared statements be sent together. All that is
//! put into the text are integers.
//!
//! Whatever fails before the commit made no order: a transaction that is dropped open closes its connection, and
//! the server rolls back.

use futures_util::StreamExt;
use sqlx::mysql::MySqlDatabaseError;
use sqlx::{Either, Executor, MySql, MySqlConnection, Row, raw_sql};
use tokio::time::Instant;

use crate::connection::mysql::Database;
use crate::connection::pool::PooledConnection;
use crate::error::Error;
use crate::order::model::{Buyer, BuyerStatus, NewOrder, Placement};
use crate::order::steps;
use crate::request::trace;

/// The unique index that refuses a user's second order; see migration 0002.
const ONE_ORDER_PER_USER: &str = "uk_one_order_per_user";

/// MySQL's and MariaDB's error number for a duplicate key.
const DUPLICATE_ENTRY: u16 = 1062;

/// A transaction at READ COMMITTED on one connection. To be ended by [`OrderTransaction::commit`] or
/// [`OrderTransaction::rollback`]. Dropped open, by an error, a time-out or a panic, it closes its connection, and the
/// server rolls back, whatever state the protocol is in.
pub struct OrderTransaction {
    pub(super) db: Database,
    connection: PooledConnection,
    /// All statements up to the commit share one time limit, after which it does not begin. The commit has one of its own: it
    /// must not be cut short because the others were slow.
    pub(super) deadline: Instant,
    state: State,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    /// Nothing was sent.
    New,
    /// `START TRANSACTION` was sent.
    Open,
    /// Committed or rolled back for certain; the connection can be used again.
    Ended,
}

/// What became of several statements that were sent as one text.
pub(super) struct TextOutcome {
    /// The rows changed by each statement that succeeded.
    pub changed: Vec<u64>,
    /// Why the next one failed; the rest was not run.
    pub error: Option<sqlx::Error>,
}

impl OrderTransaction {
    /// Takes a connection from the pool; sends nothing yet.
    pub(super) async fn begin(db: Database, end: Option<Instant>) -> Result<Self, Error> {
        let limit = Instant::now() + db.timeout;
        let deadline = end.map_or(limit, |end| end.min(limit));
        let connection = until(deadline, db.pool.acquire_for_writes()).await?;
        Ok(OrderTransaction { db, connection, deadline, state: State::New })
    }

    /// Inserts the order unless the buyer has a committed one already; says whether it did. One round trip, which also opens
    /// the transaction.
    ///
    /// Two of these at once can both insert an order of one buyer; callers prevent that with a lock.
    ///
    /// # Errors
    /// Those of [`OrderTransaction::insert`].
    ///
    /// # Cancellation
    /// Dropped, nothing is committed.
    pub async fn insert_if_first(&mut self, order: &NewOrder) -> Result<bool, Error> {
        let placement = trace::step(self.insert_as_text(order), steps::placed).await?;
        Ok(placement == Placement::Placed)
    }

    async fn insert_as_text(&mut self, order: &NewOrder) -> Result<Placement, Error> {
        let TextOutcome { changed, error } = self.run_text(&insert_sql(order)).await?;
        match (error, &changed[..]) {
            (Some(error), _) => Err(duplicate(&error).unwrap_or_else(|| error.into())),
            (None, [0, ..]) => Ok(Placement::AlreadyOrdered),
            (None, _) => Ok(Placement::Placed),
        }
    }

    /// Inserts the order.
    ///
    /// # Errors
    /// [`Error::AlreadyOrdered`] where the unique index refuses it, [`Error::DuplicateId`] where the id is taken.
    pub async fn insert(&mut self, order: &NewOrder) -> Result<(), Error> {
        // Outside the step, so that the step's time is the statement's.
        self.open().await?;
        let query = sqlx::query(
            "INSERT INTO tb_voucher_order (id, user_id, voucher_id, unguarded) VALUES (?, ?, ?, ?)",
        )
        .bind(order.id)
        .bind(order.buyer.user_id)
        .bind(order.buyer.voucher_id)
        .bind(order.unguarded);
        trace::step(self.change(query), steps::inserted).await.map(drop)
    }

    /// Takes one from the stock whether there is one or not: the mistake of the naive strategy.
    pub async fn decrement(&mut self, voucher_id: i64) -> Result<(), Error> {
        let query =
            sqlx::query("UPDATE tb_seckill_voucher SET stock = stock - 1 WHERE voucher_id = ?")
                .bind(voucher_id);
        trace::step(self.change(query), steps::decremented).await.map(drop)
    }

    /// The stock as last committed, without locking it.
    pub async fn stock(&mut self, voucher_id: i64) -> Result<Option<i64>, Error> {
        let stock = sqlx::query_scalar::<_, i64>(
            "SELECT CAST(stock AS SIGNED) FROM tb_seckill_voucher WHERE voucher_id = ?",
        )
        .bind(voucher_id);
        let (deadline, connection) = self.open().await?;
        let read = until(deadline, stock.fetch_optional(connection));
        Ok(trace::step(read, steps::read_stock).await?)
    }

    /// Takes one if the stock is still `expected`; says whether it was.
    pub async fn decrement_if_stock_is(
        &mut self,
        voucher_id: i64,
        expected: i64,
    ) -> Result<bool, Error> {
        let query = sqlx::query(
            "UPDATE tb_seckill_voucher SET stock = stock - 1 WHERE voucher_id = ? AND stock = ?",
        )
        .bind(voucher_id)
        .bind(expected);
        Ok(trace::step(self.change(query), steps::decremented).await? > 0)
    }

    /// Locks the sale's row until this transaction ends; returns its stock.
    pub async fn lock_stock(&mut self, voucher_id: i64) -> Result<i64, Error> {
        let query = sqlx::query_scalar(
            "SELECT CAST(stock AS SIGNED) FROM tb_seckill_voucher WHERE voucher_id = ? FOR UPDATE",
        )
        .bind(voucher_id);
        let (deadline, connection) = self.open().await?;
        let stock = until(deadline, query.fetch_optional(connection)).await?;
        stock.ok_or(Error::VoucherNotFound)
    }

    /// Locks the sale's row until this transaction ends, then reads the buyer's status: one round trip, which also opens the
    /// transaction.
    ///
    /// # Errors
    /// [`Error::VoucherNotFound`], and those of the database.
    ///
    /// # Cancellation
    /// Dropped, the row is unlocked as soon as the server has closed the connection.
    pub async fn lock_sale(&mut self, buyer: Buyer) -> Result<BuyerStatus, Error> {
        trace::step(self.lock_and_read(buyer), steps::row_locked).await
    }

    async fn lock_and_read(&mut self, buyer: Buyer) -> Result<BuyerStatus, Error> {
        let Buyer { user_id, voucher_id } = buyer;
        // Two statements: under READ COMMITTED the second sees what was committed before the lock was won, which a
        // subquery of the locking statement might not.
        let statements = format!(
            "SELECT CAST(stock AS SIGNED) FROM tb_seckill_voucher WHERE voucher_id = {voucher_id} \
             FOR UPDATE; SELECT id FROM tb_voucher_order \
             WHERE user_id = {user_id} AND voucher_id = {voucher_id} AND status <> 4 LIMIT 1"
        );
        match self.read_text(&statements).await?[..] {
            [Some(stock), order_id] => Ok(BuyerStatus { stock, order_id }),
            [None, _] => Err(Error::VoucherNotFound),
            ref other => Err(Error::Internal(format!("2 statements gave {} results", other.len()))),
        }
    }

    /// Runs several statements as one text; returns the number in the first row and column of each, if there is one.
    pub(super) async fn read_text(&mut self, statements: &str) -> Result<Vec<Option<i64>>, Error> {
        let begins = self.state == State::New;
        self.state = State::Open;
        let text = format!("{}{statements}", if begins { "START TRANSACTION; " } else { "" });
        let connection = &mut self.connection;
        let reading = async {
            let (mut numbers, mut number) = (Vec::with_capacity(3), None);
            let mut steps = raw_sql(&text).fetch_many(&mut **connection);
            while let Some(step) = steps.next().await {
                match step? {
                    Either::Left(_) => numbers.push(number.take()),
                    Either::Right(row) => number = number.or(row.try_get(0)?),
                }
            }
            Ok(numbers)
        };
        match until(self.deadline, reading).await {
            Ok(mut numbers) => {
                numbers.drain(..usize::from(begins).min(numbers.len()));
                Ok(numbers)
            }
            Err(error) => {
                self.connection.failed(&error);
                Err(error.into())
            }
        }
    }

    /// Gives the commit a time limit of its own, unless that of the statements is over: then nothing is committed.
    pub(super) fn begin_commit(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        if now >= self.deadline {
            return Err(Error::Unavailable("the database"));
        }
        self.deadline = now + self.db.timeout;
        Ok(())
    }

    /// Undoes everything.
    pub async fn rollback(mut self) -> Result<(), Error> {
        if self.state == State::Open {
            self.plain("ROLLBACK").await?;
        }
        self.ended();
        Ok(())
    }

    /// The connection can be used again.
    pub(super) fn ended(&mut self) {
        self.state = State::Ended;
        self.connection.answered();
    }

    /// Opens the transaction, unless it is open; returns the time limit of its statements and the connection to run
    /// prepared ones on.
    pub(super) async fn open(&mut self) -> Result<(Instant, &mut MySqlConnection), Error> {
        if self.state == State::New {
            self.state = State::Open;
            self.plain("START TRANSACTION").await?;
        }
        Ok((self.deadline, &mut *self.connection))
    }

    /// Runs several statements as one text, up to the first that fails, and opens the transaction with it. On an error it
    /// could not be opened, so that no statement was run.
    pub(super) async fn run_text(&mut self, statements: &str) -> Result<TextOutcome, Error> {
        if self.state != State::New {
            return Ok(self.run_statements(statements).await);
        }
        self.state = State::Open;
        let text = format!("START TRANSACTION; {statements}");
        let mut outcome = self.run_statements(&text).await;
        if outcome.changed.is_empty() {
            return Err(outcome.error.map_or(Error::Unavailable("the database"), Error::from));
        }
        outcome.changed.remove(0);
        Ok(outcome)
    }

    pub(super) async fn run_statements(&mut self, text: &str) -> TextOutcome {
        let mut changed = Vec::with_capacity(4);
        let running = async {
            let mut results = raw_sql(text).execute_many(&mut *self.connection);
            while let Some(result) = results.next().await {
                changed.push(result?.rows_affected());
            }
            Ok(())
        };
        let error = until(self.deadline, running).await.err();
        if let Some(error) = &error {
            self.connection.failed(error);
        }
        TextOutcome { changed, error }
    }

    /// Runs a statement that the server does not prepare.
    pub(super) async fn plain(&mut self, sql: &'static str) -> sqlx::Result<()> {
        let done = until(self.deadline, self.connection.execute(sql)).await;
        done.map(drop).inspect_err(|error| self.connection.failed(error))
    }

    /// Runs a change; returns the rows it matched.
    pub(super) async fn change(
        &mut self,
        query: sqlx::query::Query<'_, MySql, sqlx::mysql::MySqlArguments>,
    ) -> Result<u64, Error> {
        let (deadline, connection) = self.open().await?;
        match until(deadline, query.execute(connection)).await {
            Ok(done) => Ok(done.rows_affected()),
            Err(error) => {
                self.connection.failed(&error);
                Err(duplicate(&error).unwrap_or_else(|| error.into()))
            }
        }
    }
}

fn insert_sql(order: &NewOrder) -> String {
    let NewOrder { id, buyer: Buyer { user_id, voucher_id }, unguarded } = *order;
    // `buyer` is the user of a guarded order that is not cancelled. The index that has both columns finds at most one row, so the
    // server plans nothing, which is an eighth of its time for an order.
    let (user, status) = if unguarded { ("user_id", " AND status <> 4") } else { ("buyer", "") };
    let unguarded = u8::from(unguarded);
    format!(
        "INSERT INTO tb_voucher_order (id, user_id, voucher_id, unguarded) \
         SELECT {id}, {user_id}, {voucher_id}, {unguarded} FROM DUAL WHERE NOT EXISTS \
         (SELECT 1 FROM tb_voucher_order \
         WHERE {user} = {user_id} AND voucher_id = {voucher_id}{status})"
    )
}

/// Runs `work` until `deadline`; past it, the error is the pool's time-out.
pub(super) async fn until<T>(
    deadline: Instant,
    work: impl Future<Output = sqlx::Result<T>>,
) -> sqlx::Result<T> {
    tokio::time::timeout_at(deadline, work).await.unwrap_or(Err(sqlx::Error::PoolTimedOut))
}

/// Which unique key refused an insert.
fn duplicate(error: &sqlx::Error) -> Option<Error> {
    let sqlx::Error::Database(error) = error else { return None };
    let error = error.try_downcast_ref::<MySqlDatabaseError>()?;
    (error.number() == DUPLICATE_ENTRY).then(|| {
        if error.message().contains(ONE_ORDER_PER_USER) {
            Error::AlreadyOrdered(None)
        } else {
            Error::DuplicateId
        }
    })
}
