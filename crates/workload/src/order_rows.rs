//! The rows of a sale in the service's tables, with which the checker compares the replies.
//!
//! Reads `tb_seckill_voucher`, `tb_stock_unit` and `tb_voucher_order` in one consistent snapshot. Writes nothing. A
//! database that only Java nodes use has no `tb_stock_unit`: all that is left is in the stock.

use std::time::Duration;

use sqlx::{
    Connection, Executor, MySqlConnection, MySqlPool, Row,
    mysql::{MySqlPoolOptions, MySqlRow},
};
use tokio::time::{Instant, sleep};

use crate::{
    Error,
    checker::{OrderRow, Sale},
};

/// A reader of the service's tables.
#[derive(Debug, Clone)]
pub struct OrderRows {
    pool: MySqlPool,
    /// SQL for what is left to sell of the sale `s`.
    left: &'static str,
}

/// Stock and rows of one sale, at one instant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// What was issued and what is left.
    pub sale: Sale,
    /// Every order of the voucher, by id.
    pub rows: Vec<OrderRow>,
}

/// The stock and the units that were taken out of it and are not sold.
const LEFT_WITH_UNITS: &str =
    "(s.stock + (SELECT COUNT(*) FROM tb_stock_unit u WHERE u.voucher_id = s.voucher_id))";

/// How often the tables are read while purchases are in flight.
const POLL: Duration = Duration::from_millis(100);

/// How long a connection may take: on a busy machine a database may answer nothing for seconds.
const LIMIT: Duration = Duration::from_secs(15);

impl OrderRows {
    /// Connects to the service's database.
    pub async fn open(database_url: &str) -> Result<Self, Error> {
        if database_url.is_empty() {
            return Err(Error::Usage(
                "judging needs the service's database: set DATABASE_URL to the service's own \
                 (`eval \"$(./dev env)\"`) or give --database-url"
                    .to_owned(),
            ));
        }
        let failed = |source| Error::Database { what: "while connecting", source };
        // A pool tries an address that refuses connections again and again, until its limit.
        let first = tokio::time::timeout(LIMIT, MySqlConnection::connect(database_url)).await;
        drop(first.unwrap_or(Err(sqlx::Error::PoolTimedOut)).map_err(failed)?);
        let pool = MySqlPoolOptions::new()
            .max_connections(2)
            .acquire_timeout(LIMIT)
            .after_connect(|connection, _| {
                Box::pin(async move {
                    // A snapshot needs it, whatever the server's default is.
                    let sql = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ";
                    connection.execute(sql).await.map(drop)
                })
            })
            .connect(database_url)
            .await
            .map_err(failed)?;
        let has_units: i64 = sqlx::query_scalar(
            "SELECT COUNT(*) FROM information_schema.tables \
             WHERE table_schema = DATABASE() AND table_name = 'tb_stock_unit'",
        )
        .fetch_one(&pool)
        .await
        .map_err(|source| Error::Database { what: "while looking for tables", source })?;
        Ok(Self { pool, left: if has_units > 0 { LEFT_WITH_UNITS } else { "s.stock" } })
    }

    /// Reads one sale.
    ///
    /// # Errors
    /// [`Error::Database`], also when there is no such sale.
    pub async fn read(&self, voucher_id: u64) -> Result<Snapshot, Error> {
        self.snapshot(voucher_id)
            .await
            .map_err(|source| Error::Database { what: "while reading the sale", source })
    }

    async fn snapshot(&self, voucher_id: u64) -> Result<Snapshot, sqlx::Error> {
        let begin = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY";
        let mut transaction = self.pool.begin_with(begin).await?;
        let sql = format!(
            "SELECT CAST({} AS SIGNED), s.issued FROM tb_seckill_voucher s WHERE s.voucher_id = ?",
            self.left
        );
        let (stock_left, issued): (i64, Option<i32>) =
            sqlx::query_as(&sql).bind(voucher_id).fetch_one(&mut *transaction).await?;
        let rows = sqlx::query(
            "SELECT id, user_id, status FROM tb_voucher_order WHERE voucher_id = ? ORDER BY id",
        )
        .bind(voucher_id)
        .try_map(|row: MySqlRow| {
            Ok(OrderRow { id: row.try_get(0)?, user_id: row.try_get(1)?, status: row.try_get(2)? })
        })
        .fetch_all(&mut *transaction)
        .await?;
        transaction.commit().await?;
        let cancelled = rows.iter().filter(|row| row.is_cancelled()).count() as i64;
        // A sale published by a node that keeps no `issued` can only be taken at its word.
        let sold = rows.len() as i64 - cancelled;
        let issued = issued.map_or(stock_left + sold, i64::from);
        Ok(Snapshot { sale: Sale { issued, stock_left, added: 0 }, rows })
    }

    /// What the server says of the orders' table and its indexes, in one line.
    pub async fn check_table(&self) -> Result<String, Error> {
        let rows = sqlx::raw_sql("CHECK TABLE tb_voucher_order EXTENDED").fetch_all(&self.pool);
        let said = async { rows.await?.iter().map(|row| row.try_get("Msg_text")).collect() };
        let said: Result<Vec<String>, sqlx::Error> = said.await;
        let failed = |source| Error::Database { what: "while checking the table", source };
        said.map(|lines| lines.join("; ")).map_err(failed)
    }

    /// Waits until the sale has not changed for `quiet`, but at most `limit`.
    ///
    /// Returns the last snapshot and whether it was quiet. Purchases outlive clients that gave up,
    /// so a run with lost replies is only judged once they are done.
    ///
    /// # Errors
    /// [`Error::Database`] when the tables cannot be read even at the end of `limit`.
    pub async fn wait_until_unchanged(
        &self,
        voucher_id: u64,
        quiet: Duration,
        limit: Duration,
    ) -> Result<(Snapshot, bool), Error> {
        let begin = Instant::now();
        let mut last: Option<(Snapshot, Instant)> = None;
        loop {
            let read = self.read(voucher_id).await;
            let now = Instant::now();
            let over = now - begin >= limit;
            match (read, last.take()) {
                (Ok(snapshot), Some((before, since))) if snapshot == before => {
                    if now - since >= quiet || over {
                        return Ok((snapshot, now - since >= quiet));
                    }
                    last = Some((snapshot, since));
                }
                (Ok(snapshot), _) if over => return Ok((snapshot, false)),
                (Ok(snapshot), _) => last = Some((snapshot, now)),
                (Err(error), _) if over => return Err(error),
                // A database that is away for a moment may be part of the test.
                (Err(_), _) => {}
            }
            sleep(POLL).await;
        }
    }
}
