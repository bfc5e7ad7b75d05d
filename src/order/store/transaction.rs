//! One purchase's database transaction: each statement that a strategy may run in it is a method.
//!
//! It is opened lazily. [`super::OrderStore::begin`] sends nothing; the first method sends `START TRANSACTION`,
//! and a method that is sent as text ([`OrderTransaction::place`], [`OrderTransaction::insert_batch`]) sends it in
//! front of its own statements. So opening and placing an order are one round trip, and nothing is waited for
//! between the insert and the hot stock row.
//!
//! Those methods are text because the protocol lets no prepared statements be sent together. All that is
//! put into the text are integers.
//!
//! Whatever fails before the commit made no order: a transaction that is dropped open closes its connection, and
//! the server rolls back. Only [`OrderTransaction::commit`] can end in [`Error::OutcomeUnknown`].

use std::time::Duration;

use backon::Retryable;
use futures_util::StreamExt;
use sqlx::mysql::MySqlDatabaseError;
use sqlx::{Executor, MySql, MySqlConnection, raw_sql};
use tokio::time::Instant;

use crate::connection::mysql::Database;
use crate::connection::pool::PooledConnection;
use crate::connection::server_error::is_read_only;
use crate::error::Error;
use crate::order::model::{Buyer, BuyerStatus, NewOrder, Placement};
use crate::order::steps;
use crate::request::trace;

/// The unique index that refuses a user's second order; see migration 0002.
const ONE_ORDER_PER_USER: &str = "uk_one_order_per_user";

/// MySQL's and MariaDB's error number for a duplicate key.
const DUPLICATE_ENTRY: u16 = 1062;

/// Pause between two reads of an order whose commit is in doubt.
const RESOLVE_PAUSE: Duration = Duration::from_millis(100);

/// A transaction at READ COMMITTED on one connection. To be ended by [`OrderTransaction::commit`] or
/// [`OrderTransaction::rollback`]. Dropped open, by an error, a time-out or a panic, it closes its connection, and the
/// server rolls back, whatever state the protocol is in.
pub struct OrderTransaction {
    db: Database,
    connection: PooledConnection,
    /// All statements up to the commit share one time limit. The commit has one of its own: it must not be cut
    /// short because the others were slow.
    deadline: Instant,
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
    pub(super) async fn begin(db: Database) -> Result<Self, Error> {
        let deadline = Instant::now() + db.timeout;
        let connection = until(deadline, db.pool.acquire()).await?;
        Ok(OrderTransaction { db, connection, deadline, state: State::New })
    }

    /// Inserts the order unless the buyer has a committed one already, and takes one from the stock if there is one:
    /// one round trip, which also opens the transaction. To be committed where the order is [`Placement::Placed`],
    /// else to be rolled back.
    ///
    /// Two of these at once can both insert an order of one buyer; callers prevent that with a lock. The errors are those
    /// of [`OrderTransaction::insert`].
    pub async fn place(&mut self, order: &NewOrder) -> Result<Placement, Error> {
        trace::step(self.place_as_text(order), steps::placed).await
    }

    async fn place_as_text(&mut self, order: &NewOrder) -> Result<Placement, Error> {
        let TextOutcome { changed, error } = self.run_text(&place_sql(order)).await?;
        match (error, &changed[..]) {
            (Some(error), _) => Err(duplicate(&error).unwrap_or_else(|| error.into())),
            (None, [0, ..]) => Ok(Placement::AlreadyOrdered),
            (None, [_, _, 0]) => Ok(Placement::SoldOut),
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

    /// Locks the sale's row until this transaction ends, then reads the buyer's status.
    pub async fn lock_sale(&mut self, buyer: Buyer) -> Result<BuyerStatus, Error> {
        // Outside the step, as in `insert`.
        self.open().await?;
        trace::step(self.lock_and_read(buyer), steps::row_locked).await
    }

    async fn lock_and_read(&mut self, buyer: Buyer) -> Result<BuyerStatus, Error> {
        let stock = self.lock_stock(buyer.voucher_id).await?;
        // A statement of its own: under READ COMMITTED it sees what was committed before the lock
        // was won, which a subquery of the locking statement might not.
        let order = sqlx::query_scalar::<_, i64>(
            "SELECT id FROM tb_voucher_order WHERE user_id = ? AND voucher_id = ? AND status <> 4 \
             LIMIT 1",
        )
        .bind(buyer.user_id)
        .bind(buyer.voucher_id);
        let (deadline, connection) = self.open().await?;
        let order_id = until(deadline, order.fetch_optional(connection)).await?;
        Ok(BuyerStatus { stock, order_id })
    }

    /// Commits, and resolves the outcome where the reply was lost, by looking up `order`, which may be any order of the
    /// transaction.
    ///
    /// # Errors
    /// [`Error::Unavailable`] is definite: nothing was done. [`Error::OutcomeUnknown`] only where the database
    /// could not be asked for as long as one step may take; the first tries may meet connections that died with
    /// the one that was to commit.
    pub async fn commit(self, order: &NewOrder) -> Result<(), Error> {
        trace::step(self.commit_and_resolve(order), steps::committed).await
    }

    async fn commit_and_resolve(self, order: &NewOrder) -> Result<(), Error> {
        let db = self.db.clone();
        match self.commit_once(order.id).await {
            Err(Error::OutcomeUnknown(_)) => {}
            outcome => return outcome,
        }
        let deadline = Instant::now() + db.timeout;
        let pauses = std::iter::repeat(RESOLVE_PAUSE).take_while(|_| Instant::now() < deadline);
        // Boxed, because it is rare, and every purchase would carry its size.
        match (|| Box::pin(is_committed(&db, order))).retry(pauses).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::Unavailable("the database")),
            Err(_) => Err(Error::OutcomeUnknown(Some(order.id))),
        }
    }

    /// Commits without resolving a lost reply, which is [`Error::OutcomeUnknown`] with `order_id`: for changes that the
    /// existence of an order does not prove.
    pub(super) async fn commit_once(mut self, order_id: i64) -> Result<(), Error> {
        self.deadline = Instant::now() + self.db.timeout;
        match self.plain("COMMIT").await {
            Ok(()) => {
                self.ended();
                Ok(())
            }
            Err(error) if is_read_only(&error) => Err(error.into()),
            Err(error) => {
                tracing::warn!(order_id, %error, "the commit's reply was lost");
                Err(Error::OutcomeUnknown(Some(order_id)))
            }
        }
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
    fn ended(&mut self) {
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

    async fn run_statements(&mut self, text: &str) -> TextOutcome {
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
    async fn plain(&mut self, sql: &'static str) -> sqlx::Result<()> {
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

/// Whether this order was committed, waiting for any transaction that may still decide it: a locking read on a row that is
/// being inserted does not return until that transaction has ended. A server that takes no writes is not asked: the replica
/// of a primary that is gone may have received the order and not applied it yet. The id of an order that was rolled back
/// may be another buyer's by now, if the counter was lost meanwhile.
async fn is_committed(db: &Database, order: &NewOrder) -> Result<bool, Error> {
    let query = sqlx::query_as::<_, (i64, i64)>(
        "SELECT CAST(user_id AS SIGNED), CAST(voucher_id AS SIGNED) FROM tb_voucher_order \
         WHERE id = ? LOCK IN SHARE MODE",
    )
    .bind(order.id);
    let read = async {
        let mut connection = db.pool.acquire_writable().await?;
        let found = query.fetch_optional(&mut *connection).await?;
        connection.answered();
        Ok(found)
    };
    let found = db.bounded(read).await?;
    Ok(found == Some((order.buyer.user_id, order.buyer.voucher_id)))
}

/// The hot row is changed last, and not touched where nothing was inserted.
fn place_sql(order: &NewOrder) -> String {
    let NewOrder { id, buyer: Buyer { user_id, voucher_id }, unguarded } = *order;
    let unguarded = u8::from(unguarded);
    format!(
        "INSERT INTO tb_voucher_order (id, user_id, voucher_id, unguarded) \
         SELECT {id}, {user_id}, {voucher_id}, {unguarded} FROM DUAL WHERE NOT EXISTS \
         (SELECT 1 FROM tb_voucher_order \
         WHERE user_id = {user_id} AND voucher_id = {voucher_id} AND status <> 4); \
         SET @inserted = ROW_COUNT(); \
         UPDATE tb_seckill_voucher SET stock = stock - 1 \
         WHERE @inserted > 0 AND voucher_id = {voucher_id} AND stock > 0"
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
