//! What one purchase writes: a transaction on one connection, every conditional statement one
//! function. Whatever fails before the commit made no order: a ledger that is dropped closes its
//! connection, and the server rolls back. Only [`Ledger::commit`] can end in
//! [`Error::OutcomeUnknown`].

use std::time::Duration;

use futures_util::StreamExt;
use sqlx::mysql::MySqlDatabaseError;
use sqlx::pool::PoolConnection;
use sqlx::{Executor, MySql, raw_sql};
use tokio::time::Instant;

use super::Standing;
use crate::connection::mysql::Database;
use crate::error::Error;
use crate::order::model::{Buyer, NewOrder};
use crate::order::steps;
use crate::request::trace;

/// The unique index that is the last word on second orders; see migration 0002.
const ONE_ORDER_PER_USER: &str = "uk_one_order_per_user";

/// MySQL's and MariaDB's error number for a duplicate key.
const DUPLICATE_ENTRY: u16 = 1062;

/// What became of an order within its transaction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Placed {
    /// It is inserted, and one is taken from the stock.
    Taken,
    /// The buyer has a committed order.
    OrderedBefore,
    /// It is inserted, and the stock is used up.
    NothingLeft,
}

/// One purchase's transaction, READ COMMITTED. To be ended by [`super::OrderStore::commit`] or
/// [`Ledger::rollback`].
pub struct Ledger {
    pub(super) connection: PoolConnection<MySql>,
    /// All statements up to the commit share one time limit.
    pub(super) deadline: Instant,
    /// The commit has one of its own: it must not be cut short because the others were slow.
    commit_limit: Duration,
    /// Whether the transaction ended in a known way; until then the connection is not reused.
    settled: bool,
}

impl Drop for Ledger {
    fn drop(&mut self) {
        if !self.settled {
            // Abandoned by an error, a time-out or a panic: the server rolls back when the
            // connection closes, whatever state the protocol is in.
            self.connection.close_on_drop();
        }
    }
}

impl Ledger {
    pub(super) async fn open(db: &Database) -> Result<Self, Error> {
        let deadline = Instant::now() + db.timeout;
        let connection = until(deadline, db.pool.acquire()).await?;
        let mut ledger = Ledger::on(connection, deadline, db.timeout);
        ledger.plain("START TRANSACTION").await?;
        Ok(ledger)
    }

    /// For a transaction that the caller begins on `connection`.
    pub(super) fn on(
        connection: PoolConnection<MySql>,
        deadline: Instant,
        commit_limit: Duration,
    ) -> Self {
        Ledger { connection, deadline, commit_limit, settled: false }
    }

    /// Opens a transaction, inserts the order unless the buyer has a committed one already, and takes one
    /// from the stock if there is one: one round trip, as text, because the protocol lets no prepared
    /// statements travel together; all that is put into it are integers. Two of these at once can both
    /// insert; that is what the locks are for. Errors as [`Ledger::insert`].
    pub(super) async fn open_placed(
        db: &Database,
        order: &NewOrder,
    ) -> Result<(Self, Placed), Error> {
        let deadline = Instant::now() + db.timeout;
        let connection = until(deadline, db.pool.acquire()).await?;
        let mut ledger = Ledger::on(connection, deadline, db.timeout);
        let (changed, ended) = ledger.texts(&place_sql(order)).await;
        if let Err(fault) = ended {
            return Err(duplicate(&fault).unwrap_or_else(|| fault.into()));
        }
        let placed = match changed[..] {
            [_, 0, ..] => Placed::OrderedBefore,
            [_, _, _, 0] => Placed::NothingLeft,
            _ => Placed::Taken,
        };
        Ok((ledger, placed))
    }

    /// Runs several statements that travel as one text, up to the first that fails; returns the rows changed
    /// by each that ended well.
    pub(super) async fn texts(&mut self, sql: &str) -> (Vec<u64>, sqlx::Result<()>) {
        let mut changed = Vec::with_capacity(4);
        let running = async {
            let mut results = raw_sql(sql).execute_many(&mut *self.connection);
            while let Some(result) = results.next().await {
                changed.push(result?.rows_affected());
            }
            Ok(())
        };
        let ended = until(self.deadline, running).await;
        (changed, ended)
    }

    /// Inserts the order. [`Error::AlreadyOrdered`] where the unique index refuses it,
    /// [`Error::DuplicateId`] where the id is taken.
    pub async fn insert(&mut self, order: &NewOrder) -> Result<(), Error> {
        let query = sqlx::query(
            "INSERT INTO tb_voucher_order (id, user_id, voucher_id, unguarded) VALUES (?, ?, ?, ?)",
        )
        .bind(order.id)
        .bind(order.buyer.user_id)
        .bind(order.buyer.voucher_id)
        .bind(order.unguarded);
        trace::step(self.change(query), steps::inserted).await.map(drop)
    }

    /// Takes one from the stock whether there is one or not: the mistake of the naive rung.
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
        let read = until(self.deadline, stock.fetch_optional(&mut *self.connection));
        Ok(trace::step(read, steps::read_stock).await?)
    }

    /// Takes one if the stock is still what was seen; says whether it was.
    pub async fn decrement_if_stock_is(
        &mut self,
        voucher_id: i64,
        seen: i64,
    ) -> Result<bool, Error> {
        let query = sqlx::query(
            "UPDATE tb_seckill_voucher SET stock = stock - 1 WHERE voucher_id = ? AND stock = ?",
        )
        .bind(voucher_id)
        .bind(seen);
        Ok(trace::step(self.change(query), steps::decremented).await? > 0)
    }

    /// Locks the sale's row until this transaction ends, then reads where the buyer stands.
    pub async fn lock_sale(&mut self, buyer: Buyer) -> Result<Option<Standing>, Error> {
        trace::step(self.lock_row(buyer), steps::row_locked).await
    }

    async fn lock_row(&mut self, buyer: Buyer) -> Result<Option<Standing>, Error> {
        let stock = sqlx::query_scalar::<_, i64>(
            "SELECT CAST(stock AS SIGNED) FROM tb_seckill_voucher WHERE voucher_id = ? FOR UPDATE",
        )
        .bind(buyer.voucher_id);
        let Some(stock) = until(self.deadline, stock.fetch_optional(&mut *self.connection)).await?
        else {
            return Ok(None);
        };
        // A statement of its own: under READ COMMITTED it sees what was committed before the lock
        // was won, which a subquery of the statement above might not.
        let order = sqlx::query_scalar::<_, i64>(
            "SELECT id FROM tb_voucher_order WHERE user_id = ? AND voucher_id = ? AND status <> 4 \
             LIMIT 1",
        )
        .bind(buyer.user_id)
        .bind(buyer.voucher_id);
        let order_id = until(self.deadline, order.fetch_optional(&mut *self.connection)).await?;
        Ok(Some(Standing { stock, order_id }))
    }

    /// Commits. When the reply is lost, the order may or may not exist: then the error is
    /// [`Error::OutcomeUnknown`] with its id.
    pub(super) async fn commit(mut self, order_id: i64) -> Result<(), Error> {
        self.deadline = Instant::now() + self.commit_limit;
        match self.plain("COMMIT").await {
            Ok(()) => {
                self.settled = true;
                Ok(())
            }
            Err(fault) => {
                tracing::warn!(order_id, %fault, "the commit's reply was lost");
                Err(Error::OutcomeUnknown(Some(order_id)))
            }
        }
    }

    /// Takes everything back.
    pub async fn rollback(mut self) -> Result<(), Error> {
        self.plain("ROLLBACK").await?;
        self.settled = true;
        Ok(())
    }

    /// Runs a statement that the server does not prepare.
    async fn plain(&mut self, sql: &'static str) -> Result<(), Error> {
        Ok(until(self.deadline, self.connection.execute(sql)).await.map(drop)?)
    }

    /// Runs a change; returns the rows it matched.
    pub(super) async fn change(
        &mut self,
        query: sqlx::query::Query<'_, MySql, sqlx::mysql::MySqlArguments>,
    ) -> Result<u64, Error> {
        match until(self.deadline, query.execute(&mut *self.connection)).await {
            Ok(done) => Ok(done.rows_affected()),
            Err(fault) => Err(duplicate(&fault).unwrap_or_else(|| fault.into())),
        }
    }
}

/// The hot row is changed last, and not touched where nothing was inserted.
fn place_sql(order: &NewOrder) -> String {
    let NewOrder { id, buyer: Buyer { user_id, voucher_id }, unguarded } = *order;
    let unguarded = u8::from(unguarded);
    format!(
        "START TRANSACTION; \
         INSERT INTO tb_voucher_order (id, user_id, voucher_id, unguarded) \
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
fn duplicate(fault: &sqlx::Error) -> Option<Error> {
    let sqlx::Error::Database(fault) = fault else { return None };
    let fault = fault.try_downcast_ref::<MySqlDatabaseError>()?;
    (fault.number() == DUPLICATE_ENTRY).then(|| {
        if fault.message().contains(ONE_ORDER_PER_USER) {
            Error::AlreadyOrdered(None)
        } else {
            Error::DuplicateId
        }
    })
}
