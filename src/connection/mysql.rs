//! The database: how connections are made, and the time limit of each step. SQL stays portable to MariaDB, MySQL and
//! OceanBase.

use std::iter;
use std::sync::Arc;
use std::time::Duration;

use backon::Retryable;
use secrecy::SecretString;
use sqlx::{Connection, MySqlConnection};
use tokio::time::Instant;

use super::database_clock::DatabaseClock;
use super::database_url::{cannot_connect, options};
use super::opener::Opener;
use super::pool::{Pool, PooledConnection};
use super::product::{self, Product};

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
    /// Runs `work`, on a connection that the caller has, for at most the time limit. The pool learns from an error that the
    /// server is read-only, or does not answer.
    ///
    /// # Errors
    /// Those of `work`; an I/O error past the limit.
    pub async fn bounded<T>(&self, work: impl Future<Output = sqlx::Result<T>>) -> sqlx::Result<T> {
        self.until(self.pool.deadline(), work).await
    }

    /// As [`Database::bounded`], until `deadline`.
    pub async fn until<T>(
        &self,
        deadline: Instant,
        work: impl Future<Output = sqlx::Result<T>>,
    ) -> sqlx::Result<T> {
        let began = Instant::now();
        match tokio::time::timeout_at(deadline, work).await {
            Ok(result) => result.inspect_err(|error| self.pool.shared.learn_from(error)),
            Err(_) => Err(self.pool.unanswered(began)),
        }
    }

    /// The server's clock.
    pub fn clock(&self) -> &DatabaseClock {
        &self.pool.shared.clock
    }

    /// The same database on other connections, at most `connections`. What is learnt of the server through one of the pools
    /// holds for the other.
    pub fn beside(&self, connections: u32) -> Self {
        Database {
            pool: self.pool.beside(connections),
            timeout: self.timeout,
        }
    }

    /// As [`Database::beside`], for statements that only read: the server itself ends them at the time limit.
    pub fn for_reads(&self, connections: u32) -> Self {
        Database {
            pool: self.pool.for_reads(connections),
            timeout: self.timeout,
        }
    }

    /// Asks what became of a commit whose reply was lost: again and again, for as long as one step may take, until there is an
    /// answer. The first tries may meet connections that died with the one that was to commit.
    ///
    /// # Errors
    /// The last one.
    pub async fn ask_until_answered<T, E, F>(&self, ask: impl Fn() -> F) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        let deadline = self.pool.deadline();
        let pause = Duration::from_millis(100);
        let pauses = iter::from_fn(move || (Instant::now() < deadline).then_some(pause));
        ask.retry(pauses).await
    }

    /// Runs `work` [in time](Database::bounded) on a connection to a server that takes writes; see
    /// [`Pool::acquire_writable`].
    pub async fn ask_primary<T>(
        &self,
        work: impl AsyncFnOnce(&mut MySqlConnection) -> sqlx::Result<T>,
    ) -> sqlx::Result<T> {
        let deadline = self.pool.deadline();
        let connection = self.pool.acquire_writable(deadline).await?;
        self.run(connection, deadline, work).await
    }

    /// Runs one statement that does not write, or several that are no transaction, [in time](Database::bounded).
    pub async fn read<T>(
        &self,
        work: impl AsyncFnOnce(&mut MySqlConnection) -> sqlx::Result<T>,
    ) -> sqlx::Result<T> {
        // Boxed, so that the futures that await it stay small: that of a purchase contains it, and is moved.
        Box::pin(async {
            let deadline = self.pool.deadline();
            let connection = self.pool.acquire(deadline).await?;
            self.run(connection, deadline, work).await
        })
        .await
    }

    /// Runs one statement that writes, [in time](Database::bounded), on a connection [for writes](Pool::acquire_for_writes).
    pub async fn write<T>(
        &self,
        work: impl AsyncFnOnce(&mut MySqlConnection) -> sqlx::Result<T>,
    ) -> sqlx::Result<T> {
        Box::pin(async {
            let deadline = self.pool.deadline();
            let connection = self.pool.acquire_for_writes(deadline).await?;
            self.run(connection, deadline, work).await
        })
        .await
    }

    /// Hands the connection back once `work` was answered.
    async fn run<T>(
        &self,
        mut connection: PooledConnection,
        deadline: Instant,
        work: impl AsyncFnOnce(&mut MySqlConnection) -> sqlx::Result<T>,
    ) -> sqlx::Result<T> {
        let result = self.until(deadline, work(&mut connection)).await;
        connection.answered_with(&result);
        result
    }
}

/// A pool of at most `connections`; `timeout` limits the wait for one of them and each step.
///
/// # Errors
/// As [`connect_once`], by which a wrong address is found at start. The pool alone would try again until its limit, and its
/// error would say less.
pub async fn connect(
    url: &SecretString,
    connections: u32,
    timeout: Duration,
) -> anyhow::Result<Database> {
    let mut first = connect_once(url, timeout).await?;
    let version = tokio::time::timeout(timeout, product::version(&mut first)).await??;
    first.close().await?;
    let opener = Opener {
        options: options(url)?,
        product: Product::from_version(&version),
        step_limit: timeout,
        read_limit: None,
        shared: Arc::default(),
    };
    Ok(Database {
        pool: Pool::new(opener, connections, timeout),
        timeout,
    })
}

/// Succeeds where the database answers and takes writes; for readiness.
pub async fn ping(database: &Database) -> sqlx::Result<()> {
    let deadline = database.pool.deadline();
    database.pool.acquire_writable(deadline).await.map(drop)
}
