//! The rows of a sale in the service's tables, with which the checker compares the replies.
//!
//! Reads `tb_seckill_voucher`, `tb_stock_unit` and `tb_voucher_order` in one consistent snapshot. Writes nothing. A
//! database that only Java nodes use has no `tb_stock_unit`, where all that is left is in the stock, and no `issued`, for
//! which [`OrderRows::with_issued`] stands in. Its columns may have another sign or may be NULL.

use std::{ops::RangeInclusive, time::Duration};

use sqlx::{
    Connection, Executor, MySql, MySqlConnection, MySqlPool, Transaction, mysql::MySqlPoolOptions,
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
    stock_left_sql: &'static str,
    /// SQL for what was put on sale.
    issued_sql: &'static str,
    /// What was put on sale, where the tables do not say it.
    issued: Option<i64>,
}

/// Stock and rows of one sale, at one instant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// What was issued and what is left.
    pub sale: Sale,
    /// Every order of the voucher, by id.
    pub rows: Vec<OrderRow>,
}

impl Snapshot {
    fn new(stock_left: i64, issued: Option<i64>, rows: Vec<OrderRow>) -> Self {
        let sold = rows.iter().filter(|row| !row.is_cancelled()).count() as i64;
        // Where nobody knows what was issued, the rows and the stock cannot contradict it.
        let issued = issued.unwrap_or(stock_left + sold);
        Self {
            sale: Sale {
                issued,
                stock_left,
                added: 0,
            },
            rows,
        }
    }
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
            return Err(Error::unset(
                "judging needs the service's database",
                "DATABASE_URL",
            ));
        }
        let failed = |source| Error::Database {
            what: "while connecting",
            source,
        };
        // Connects without the pool first: that would try an address that refuses connections again and again, until its
        // limit.
        let first = tokio::time::timeout(LIMIT, MySqlConnection::connect(database_url)).await;
        drop(
            first
                .unwrap_or(Err(sqlx::Error::PoolTimedOut))
                .map_err(failed)?,
        );
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
        let has_units = has_column(&pool, "tb_stock_unit", "voucher_id").await?;
        let has_issued = has_column(&pool, "tb_seckill_voucher", "issued").await?;
        Ok(Self {
            pool,
            stock_left_sql: if has_units {
                LEFT_WITH_UNITS
            } else {
                "s.stock"
            },
            issued_sql: if has_issued { "s.issued" } else { "NULL" },
            issued: None,
        })
    }

    /// Reads sales of which so many were put on sale, where the tables do not say it.
    #[must_use]
    pub fn with_issued(self, issued: u32) -> Self {
        Self {
            issued: Some(issued.into()),
            ..self
        }
    }

    /// Whether the tables do not say what was put on sale, as those of this service do.
    pub fn is_of_another_service(&self) -> bool {
        self.issued.is_some()
    }

    /// Reads one sale.
    ///
    /// # Errors
    /// [`Error::Database`], also when there is no such sale.
    pub async fn read(&self, voucher_id: u64) -> Result<Snapshot, Error> {
        Ok(self.read_all(voucher_id..=voucher_id).await?.swap_remove(0))
    }

    /// Locks the rows of these sales for `time`, again and again, as slow transactions do. Ends only where the database fails.
    pub async fn keep_locking(&self, [first, second]: [u64; 2], time: Duration) -> Error {
        let lock = lock_sql(first, second);
        loop {
            let locking = async {
                let mut transaction = self.pool.begin().await?;
                transaction.execute(lock.as_str()).await?;
                sleep(time).await;
                transaction.rollback().await
            };
            if let Err(source) = locking.await {
                return locking_failed(source);
            }
        }
    }

    /// Locks the rows of these sales until the transaction ends, as a slow one does: no order of theirs is written meanwhile.
    pub async fn lock(&self, [first, second]: [u64; 2]) -> Result<SlowTransaction, Error> {
        let locking = async {
            let mut transaction = self.pool.begin().await?;
            transaction.execute(&*lock_sql(first, second)).await?;
            Ok(transaction)
        };
        locking.await.map(SlowTransaction).map_err(locking_failed)
    }

    async fn read_all(&self, vouchers: RangeInclusive<u64>) -> Result<Vec<Snapshot>, Error> {
        let read = self.snapshots(vouchers).await;
        read.map_err(|source| Error::Database {
            what: "while reading the sale",
            source,
        })
    }

    /// The sales of these vouchers, at one instant; an error where one of them is no sale.
    async fn snapshots(&self, vouchers: RangeInclusive<u64>) -> Result<Vec<Snapshot>, sqlx::Error> {
        let count = vouchers.clone().count();
        let (first, last) = vouchers.into_inner();
        let begin = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY";
        let mut transaction = self.pool.begin_with(begin).await?;
        let sql = format!(
            "SELECT CAST({} AS SIGNED), CAST({} AS SIGNED) FROM tb_seckill_voucher s \
             WHERE s.voucher_id BETWEEN ? AND ? ORDER BY s.voucher_id",
            self.stock_left_sql, self.issued_sql
        );
        let sales: Vec<(i64, Option<i64>)> = sqlx::query_as(&sql)
            .bind(first)
            .bind(last)
            .fetch_all(&mut *transaction)
            .await?;
        if sales.len() != count {
            return Err(sqlx::Error::RowNotFound);
        }
        let orders: Vec<(u64, i64, u64, u8)> = sqlx::query_as(
            "SELECT CAST(voucher_id AS UNSIGNED), CAST(id AS SIGNED), CAST(user_id AS UNSIGNED), \
                    CAST(COALESCE(status, 1) AS UNSIGNED) \
             FROM tb_voucher_order WHERE voucher_id BETWEEN ? AND ? ORDER BY id",
        )
        .bind(first)
        .bind(last)
        .fetch_all(&mut *transaction)
        .await?;
        transaction.commit().await?;
        let mut rows = vec![Vec::new(); count];
        for (voucher_id, id, user_id, status) in orders {
            rows[(voucher_id - first) as usize].push(OrderRow {
                id,
                user_id,
                status,
            });
        }
        let snapshots = sales
            .into_iter()
            .zip(rows)
            .map(|((stock_left, issued), rows)| {
                Snapshot::new(stock_left, issued.or(self.issued), rows)
            });
        Ok(snapshots.collect())
    }

    /// Waits until the sales of these vouchers have at least so many `orders` and have not changed for `quiet`, but at most
    /// `limit`.
    ///
    /// Returns the last snapshots and whether it was quiet. Purchases outlive clients that gave up,
    /// so a run with lost replies is only judged once they are done.
    ///
    /// # Errors
    /// [`Error::Database`] when the tables cannot be read even at the end of `limit`.
    pub async fn wait_until_unchanged(
        &self,
        vouchers: RangeInclusive<u64>,
        orders: usize,
        quiet: Duration,
        limit: Duration,
    ) -> Result<(Vec<Snapshot>, bool), Error> {
        let begin = Instant::now();
        let mut last: Option<(Vec<Snapshot>, Instant)> = None;
        loop {
            let read = self.read_all(vouchers.clone()).await;
            let now = Instant::now();
            let limit_reached = now - begin >= limit;
            match (read, last.take()) {
                (Ok(sales), Some((before, since))) if sales == before => {
                    let is_quiet = now - since >= quiet;
                    let rows: usize = sales.iter().map(|sale| sale.rows.len()).sum();
                    if limit_reached || is_quiet && rows >= orders {
                        return Ok((sales, is_quiet));
                    }
                    last = Some((sales, since));
                }
                (Ok(sales), _) if limit_reached => return Ok((sales, false)),
                (Ok(sales), _) => last = Some((sales, now)),
                (Err(error), _) if limit_reached => return Err(error),
                // A database that is away for a moment may be part of the test.
                (Err(_), _) => {}
            }
            sleep(POLL).await;
        }
    }
}

/// A transaction that has locked the rows of sales; dropped, it is rolled back soon.
#[derive(Debug)]
pub struct SlowTransaction(Transaction<'static, MySql>);

impl SlowTransaction {
    /// Rolls it back: the rows are free.
    pub async fn end(self) -> Result<(), Error> {
        self.0.rollback().await.map_err(locking_failed)
    }
}

fn lock_sql(first: u64, second: u64) -> String {
    format!(
        "SELECT stock FROM tb_seckill_voucher WHERE voucher_id IN ({first}, {second}) FOR UPDATE"
    )
}

fn locking_failed(source: sqlx::Error) -> Error {
    Error::Database {
        what: "while locking the sales",
        source,
    }
}

/// Whether this database has such a table with such a column.
async fn has_column(pool: &MySqlPool, table: &str, column: &str) -> Result<bool, Error> {
    let sql = "SELECT COUNT(*) FROM information_schema.columns \
               WHERE table_schema = DATABASE() AND table_name = ? AND column_name = ?";
    let count: i64 = sqlx::query_scalar(sql)
        .bind(table)
        .bind(column)
        .fetch_one(pool)
        .await
        .map_err(|source| Error::Database {
            what: "while looking for tables",
            source,
        })?;
    Ok(count > 0)
}
