//! MySQL / MariaDB: how connections are made, and the time limit of each step. SQL stays portable to both.

use std::iter;
use std::sync::Arc;
use std::time::Duration;

use backon::Retryable;
use secrecy::SecretString;
use sqlx::{Connection, MySqlConnection};
use tokio::time::Instant;

use super::database_url::{cannot_connect, options};
use super::opener::Opener;
use super::pool::Pool;

/// A connection that was idle for longer is not used again: something between here and the server may have forgotten it.
const IDLE_LIMIT: Duration = Duration::from_secs(10 * 60);

/// The same on MySQL, whose `wait_timeout` is about to close it.
const MYSQL_IDLE_LIMIT: Duration = Duration::from_secs(20);

/// One connection, apart from any pool.
///
/// # Errors
/// The address is wrong, or the connection failed or took longer than `limit`: why, as one sentence.
pub async fn connect_once(url: &SecretString, limit: Duration) -> anyhow::Result<MySqlConnection> {
    let options = options(url)?;
    let connecting = tokio::time::timeout(limit, MySqlConnection::connect_with(&options)).await;
    let connected = connecting.unwrap_or(Err(sqlx::Error::PoolTimedOut));
    connected.map_err(|error| cannot_connect(&error, &options))
}

/// A connection pool with a time limit for each step: the driver itself would wait forever on a server that hangs.
#[derive(Clone)]
pub struct Database {
    /// The connections.
    pub pool: Pool,
    /// The time limit of [`Database::bounded`].
    pub timeout: Duration,
}

impl Database {
    /// Runs `work` for at most the time limit; past it, the error is that of [`Pool::timed_out`]. The pool learns from an
    /// error that the server is read-only.
    pub async fn bounded<T>(&self, work: impl Future<Output = sqlx::Result<T>>) -> sqlx::Result<T> {
        self.until(Instant::now() + self.timeout, work).await
    }

    /// As [`Database::bounded`], until `deadline`.
    pub async fn until<T>(
        &self,
        deadline: Instant,
        work: impl Future<Output = sqlx::Result<T>>,
    ) -> sqlx::Result<T> {
        let result = tokio::time::timeout_at(deadline, work).await;
        let result = result.unwrap_or_else(|_| Err(self.pool.timed_out()));
        result.inspect_err(|error| self.pool.shared.learn_from(error))
    }

    /// The same database on connections of its own, at most so many: what is learnt of the server through the ones holds for
    /// the others.
    pub fn beside(&self, connections: u32) -> Self {
        Database {
            pool: self.pool.beside(connections),
            timeout: self.timeout,
        }
    }

    /// Asks what became of a commit whose reply was lost: again and again, for as long as one step may take, until there is an
    /// answer. The first tries may meet connections that died with the one that was to commit.
    ///
    /// # Errors
    /// The last one.
    pub async fn ask_until_answered<T, F>(&self, ask: impl Fn() -> F) -> sqlx::Result<T>
    where
        F: Future<Output = sqlx::Result<T>>,
    {
        let (deadline, pause) = (Instant::now() + self.timeout, Duration::from_millis(100));
        let pauses = iter::from_fn(move || (Instant::now() < deadline).then_some(pause));
        (|| self.bounded(ask())).retry(pauses).await
    }

    /// Runs one statement that does not write, or several that are no transaction, [in time](Database::bounded).
    pub async fn read<T>(
        &self,
        work: impl AsyncFnOnce(&mut MySqlConnection) -> sqlx::Result<T>,
    ) -> sqlx::Result<T> {
        self.run(false, work).await
    }

    /// Runs one statement that writes, [in time](Database::bounded), on a connection [for writes](Pool::acquire_for_writes).
    pub async fn write<T>(
        &self,
        work: impl AsyncFnOnce(&mut MySqlConnection) -> sqlx::Result<T>,
    ) -> sqlx::Result<T> {
        self.run(true, work).await
    }

    /// Takes a connection, and hands it back once `work` was answered. Boxed, so that what awaits it stays small: the future of
    /// a purchase, which is moved, has a place for it.
    async fn run<T>(
        &self,
        writes: bool,
        work: impl AsyncFnOnce(&mut MySqlConnection) -> sqlx::Result<T>,
    ) -> sqlx::Result<T> {
        self.bounded(Box::pin(async {
            let acquired = if writes {
                self.pool.acquire_for_writes().await
            } else {
                self.pool.acquire().await
            };
            let mut connection = acquired?;
            let result = work(&mut connection).await;
            connection.answered_with(&result);
            result
        }))
        .await
    }
}

/// A pool of at most `connections`; `timeout` limits the wait for one of them and each step.
///
/// # Errors
/// As [`connect_once`]: a wrong address is found at start. The pool would try again until its limit, and say no more.
pub async fn connect(
    url: &SecretString,
    connections: u32,
    timeout: Duration,
) -> anyhow::Result<Database> {
    let mut first = connect_once(url, timeout).await?;
    let asking = sqlx::query_scalar("SELECT VERSION()").fetch_one(&mut first);
    let version: String = tokio::time::timeout(timeout, asking).await??;
    first.close().await?;
    let idle_limit = if version.contains("MariaDB") {
        IDLE_LIMIT
    } else {
        MYSQL_IDLE_LIMIT
    };
    let opener = Opener {
        options: options(url)?,
        idle_limit,
        shared: Arc::default(),
    };
    Ok(Database {
        pool: Pool::new(opener, connections, timeout),
        timeout,
    })
}

/// Succeeds where the database answers and takes writes; for readiness.
pub async fn ping(database: &Database) -> sqlx::Result<()> {
    database
        .bounded(database.pool.acquire_writable())
        .await
        .map(drop)
}
