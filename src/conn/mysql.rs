//! MySQL / MariaDB: the pool, and what an error of it means. SQL stays portable to both.

use std::time::Duration;

use anyhow::Context;
use secrecy::{ExposeSecret, SecretString};
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::{Executor, MySqlPool};

/// Seconds a statement waits for a row lock before the database gives up on it (error 1205).
/// The server's default of 50 s is longer than any buyer waits. Shorter than the default limit of a
/// step, so that the server says which statement had to wait before we hang up on it.
const LOCK_WAIT_SECONDS: u32 = 2;

/// Server error numbers this service acts on; the same on MySQL and MariaDB.
mod number {
    pub const LOCK_WAIT_TIMEOUT: u16 = 1205;
    pub const DEADLOCK: u16 = 1213;
    pub const SHUTDOWN_IN_PROGRESS: u16 = 1053;
    pub const TOO_MANY_CONNECTIONS: u16 = 1040;
    pub const OUT_OF_RESOURCES: u16 = 1041;
    pub const KILLED: u16 = 1927;
    pub const QUERY_INTERRUPTED: u16 = 1317;
}

/// What a database error means to whoever asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// The transaction was rolled back for another's sake; running it again makes sense.
    Conflict,
    /// The server is away, restarting, or out of connections.
    Unavailable,
    /// A mistake of ours, or a constraint.
    Other,
}

/// Tells what `error` means.
pub fn classify(error: &sqlx::Error) -> Fault {
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed => Fault::Unavailable,
        sqlx::Error::Database(fault) => {
            match fault.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>().map(|e| e.number()) {
                Some(number::LOCK_WAIT_TIMEOUT | number::DEADLOCK) => Fault::Conflict,
                Some(
                    number::SHUTDOWN_IN_PROGRESS
                    | number::TOO_MANY_CONNECTIONS
                    | number::OUT_OF_RESOURCES
                    | number::KILLED
                    | number::QUERY_INTERRUPTED,
                ) => Fault::Unavailable,
                _ => Fault::Other,
            }
        }
        _ => Fault::Other,
    }
}

/// The options for `url`. The session's time zone is UTC (the driver's default), so that TIMESTAMP
/// columns are instants; nothing here may change it.
pub fn options(url: &SecretString) -> anyhow::Result<MySqlConnectOptions> {
    url.expose_secret().parse::<MySqlConnectOptions>().context(
        "DATABASE_URL is not a database address; it looks like mysql://user:password@127.0.0.1:3306/seckill",
    )
}

/// A pool, and the longest time one step on it may take: the driver itself would wait for ever on a
/// server that hangs.
#[derive(Clone, Debug)]
pub struct Database {
    /// The connections.
    pub pool: MySqlPool,
    /// The limit of [`Database::bounded`].
    pub timeout: Duration,
}

impl Database {
    /// Runs `work`, for at most the time limit; past it, the error is the pool's time-out.
    pub async fn bounded<T>(&self, work: impl Future<Output = sqlx::Result<T>>) -> sqlx::Result<T> {
        tokio::time::timeout(self.timeout, work).await.unwrap_or(Err(sqlx::Error::PoolTimedOut))
    }

    /// How the pool stands; a moment later it may stand otherwise.
    pub fn usage(&self) -> PoolUsage {
        let idle = u32::try_from(self.pool.num_idle()).unwrap_or(u32::MAX);
        let in_use = self.pool.size().saturating_sub(idle);
        PoolUsage { idle, in_use, most: self.pool.options().get_max_connections() }
    }
}

/// Connections of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUsage {
    /// Open, and waiting for work.
    pub idle: u32,
    /// At work, or being opened.
    pub in_use: u32,
    /// As many as there may be.
    pub most: u32,
}

/// A pool of at most `connections`; waiting for one of them is bounded by `timeout`.
/// Connects at once, so that a wrong address fails at start.
pub async fn connect(
    url: &SecretString,
    connections: u32,
    timeout: Duration,
) -> anyhow::Result<Database> {
    let pool = MySqlPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(timeout)
        // A ping before every use would cost each request a round trip; a connection that died is
        // noticed by the statement that meets it, and answered 503.
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
    Ok(Database { pool, timeout })
}

/// What `doctor` wants to know of the server.
pub struct ServerFacts {
    /// Such as `10.11.6-MariaDB`.
    pub version: String,
    /// `innodb_flush_log_at_trx_commit`; 1 means that a committed order survives a power cut.
    pub flush_at_commit: i64,
    /// Connections the server accepts from all its clients.
    pub max_connections: i64,
    /// The server's clock, UTC.
    pub now: chrono::NaiveDateTime,
}

/// Asks the server for [`ServerFacts`].
pub async fn facts(database: &Database) -> sqlx::Result<ServerFacts> {
    let query = sqlx::query_as(
        "SELECT VERSION(), CAST(@@innodb_flush_log_at_trx_commit AS SIGNED), \
         CAST(@@max_connections AS SIGNED), UTC_TIMESTAMP(6)",
    );
    let (version, flush_at_commit, max_connections, now) =
        database.bounded(query.fetch_one(&database.pool)).await?;
    Ok(ServerFacts { version, flush_at_commit, max_connections, now })
}

/// Whether the database answers; for readiness.
pub async fn ping(database: &Database) -> sqlx::Result<()> {
    database.bounded(sqlx::query("SELECT 1").execute(&database.pool)).await.map(drop)
}
