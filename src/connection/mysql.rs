//! MySQL / MariaDB: how connections are made, and the time limit of each step. SQL stays portable to both.

use std::time::Duration;

use anyhow::Context;
use secrecy::{ExposeSecret, SecretString};
use sqlx::Executor;
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};

use super::pool::Pool;

/// Seconds a statement waits for a row lock before the database gives up on it (error 1205).
/// The server's default of 50 s is longer than any buyer waits. Shorter than the default time limit of a step, so that
/// the server names the statement that had to wait before we close the connection.
const LOCK_WAIT_SECONDS: u32 = 2;

/// Connection options for `url`. The session's time zone is UTC (the driver's default), so that TIMESTAMP columns are
/// instants; nothing here may change it.
pub fn options(url: &SecretString) -> anyhow::Result<MySqlConnectOptions> {
    url.expose_secret().parse::<MySqlConnectOptions>().context(
        "DATABASE_URL is not a database address; it looks like mysql://user:password@127.0.0.1:3306/seckill",
    )
}

/// A connection pool with a time limit for each step: the driver itself would wait forever on a server that hangs.
#[derive(Clone, Debug)]
pub struct Database {
    /// The connections.
    pub pool: Pool,
    /// The time limit of [`Database::bounded`].
    pub timeout: Duration,
}

impl Database {
    /// Runs `work` for at most the time limit; past it, the error is [`sqlx::Error::PoolTimedOut`].
    pub async fn bounded<T>(&self, work: impl Future<Output = sqlx::Result<T>>) -> sqlx::Result<T> {
        tokio::time::timeout(self.timeout, work).await.unwrap_or(Err(sqlx::Error::PoolTimedOut))
    }

    /// Connections of the pool at this moment.
    pub fn usage(&self) -> PoolUsage {
        let idle = self.pool.idle();
        let in_use = self.pool.size().saturating_sub(idle);
        PoolUsage { idle, in_use, max: self.pool.max() }
    }
}

/// Connections of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUsage {
    /// Open and idle.
    pub idle: u32,
    /// In use, or being opened.
    pub in_use: u32,
    /// Upper bound.
    pub max: u32,
}

/// A pool of at most `connections`; `timeout` limits the wait for one of them and each step. Fails where the first
/// connection does: a wrong address is found at start.
pub async fn connect(
    url: &SecretString,
    connections: u32,
    timeout: Duration,
) -> anyhow::Result<Database> {
    let connections = MySqlPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(timeout)
        // A ping before every use would cost each request a round trip. A dead connection fails the next statement on
        // it, which is answered 503.
        .test_before_acquire(false)
        .after_connect(|connection, _| {
            Box::pin(async move {
                let session = format!("SET SESSION innodb_lock_wait_timeout = {LOCK_WAIT_SECONDS}");
                connection.execute(session.as_str()).await?;
                // The default, REPEATABLE READ, takes gap locks on which a sale's inserts deadlock.
                connection
                    .execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
                    .await?;
                Ok(())
            })
        })
        .connect_with(options(url)?)
        .await
        .context("cannot connect to the database; is it running, and is DATABASE_URL right?")?;
    Ok(Database { pool: Pool::new(connections), timeout })
}

/// Facts about the server, for `doctor`.
pub struct ServerFacts {
    /// Such as `10.11.6-MariaDB`.
    pub version: String,
    /// `innodb_flush_log_at_trx_commit`; 1 means that a committed order survives a power cut.
    pub flush_at_commit: i64,
    /// Connections the server accepts in all.
    pub max_connections: i64,
    /// The server's clock, UTC.
    pub now: chrono::NaiveDateTime,
}

/// Queries [`ServerFacts`].
pub async fn facts(database: &Database) -> sqlx::Result<ServerFacts> {
    let query = sqlx::query_as(
        "SELECT VERSION(), CAST(@@innodb_flush_log_at_trx_commit AS SIGNED), \
         CAST(@@max_connections AS SIGNED), UTC_TIMESTAMP(6)",
    );
    let (version, flush_at_commit, max_connections, now) =
        database.bounded(query.fetch_one(&database.pool)).await?;
    Ok(ServerFacts { version, flush_at_commit, max_connections, now })
}

/// Succeeds where the database answers; for readiness.
pub async fn ping(database: &Database) -> sqlx::Result<()> {
    database.bounded(sqlx::query("SELECT 1").execute(&database.pool)).await.map(drop)
}
