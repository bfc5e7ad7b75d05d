//! The pool of database connections. It is sqlx's, behind a type that decides what becomes of a connection after its use:
//!
//! - A connection is handed back only if its last statement was answered. One whose statement was cut short, by a
//!   time limit or because its future was dropped, is closed, and so the server rolls back what was open on it.
//! - Handing back is bounded. sqlx pings each connection first, without a limit: behind a connection that went silent
//!   its place would be lost for good.
//! - What broke one connection, a restart of the server or a middlebox that forgot its connections, has mostly broken the
//!   idle ones as well, and they are the next to be used. They are pinged at once, also those of other pools to the same
//!   server, and closed if they do not answer.
//! - A server that answers a write with "read-only" is the primary no more, and the address leads, or soon will, to another
//!   one. No connection that was opened before is used again, in any pool: those that only read would read an old state
//!   for as long as they live.
//!
//! sqlx opens its sockets itself and gives no access to them, so neither keepalive nor the TCP user time-out can be set
//! here; the three rules stand in their place, with a time limit for each statement (`Database::bounded`).

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::{self, BoxStream};
use parking_lot::{Mutex, RwLock};
use sqlx::mysql::{MySqlQueryResult, MySqlRow, MySqlStatement, MySqlTypeInfo};
use sqlx::pool::PoolConnection;
use sqlx::{Describe, Either, Execute, Executor, MySql, MySqlConnection, MySqlPool};
use tokio_util::task::TaskTracker;

use super::server_error::{is_read_only, leaves_usable};

/// Longest wait for the answer to a ping before a connection is handed back, or found dead.
const PING_LIMIT: Duration = Duration::from_secs(1);

/// The idle connections are pinged at most this often.
const CHECK_EVERY: Duration = Duration::from_millis(250);

/// At most this often all connections are given up because the server is read-only: while it stays so, each write says it
/// again.
const LEAVE_EVERY: Duration = Duration::from_millis(500);

/// The connections to the database. Cheap to clone. As an [`Executor`] it runs one statement on a connection of its own.
#[derive(Clone, Debug)]
pub struct Pool {
    connections: MySqlPool,
    shared: Arc<Shared>,
}

/// What the pools to one server share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pools: Mutex<Vec<MySqlPool>>,
    /// When the idle connections were last pinged.
    checked: Mutex<Option<Instant>>,
    /// When the server was last found read-only.
    left: RwLock<Option<Instant>>,
    /// Connections on their way back.
    tasks: TaskTracker,
}

impl Shared {
    /// What the pools beside this one share.
    pub(super) fn with(beside: Option<&Pool>) -> Arc<Self> {
        beside.map(|pool| pool.shared.clone()).unwrap_or_default()
    }

    /// Whether a connection of this age may be used: it was opened after the server was last found read-only.
    pub(super) fn is_current(&self, age: Duration) -> bool {
        self.left.read().is_none_or(|left| age < left.elapsed())
    }
}

impl Pool {
    /// A pool of these connections.
    pub(super) fn new(connections: MySqlPool, shared: Arc<Shared>) -> Self {
        shared.pools.lock().push(connections.clone());
        Pool { connections, shared }
    }

    /// A connection, as soon as one is free. Waits for at most the pool's limit; then the error is
    /// [`sqlx::Error::PoolTimedOut`].
    pub async fn acquire(&self) -> sqlx::Result<PooledConnection> {
        let connection = self.connections.acquire().await?;
        let pool = self.clone();
        Ok(PooledConnection { connection, pool, answered: true })
    }

    /// A connection to a server that takes writes. Only such a server says for certain that something is not there: a replica
    /// may yet apply what the primary has committed, and become the primary itself.
    ///
    /// # Errors
    /// As [`Pool::acquire`]; and where the server is read-only.
    pub async fn acquire_writable(&self) -> sqlx::Result<PooledConnection> {
        let mut connection = self.acquire().await?;
        if takes_writes(&mut connection).await? {
            connection.answered();
            return Ok(connection);
        }
        self.leave_server();
        Err(sqlx::Error::Protocol("the server is read-only".to_owned()))
    }

    /// A connection with an open transaction.
    pub async fn begin(&self) -> sqlx::Result<Transaction> {
        let mut connection = self.acquire().await?;
        connection.execute("START TRANSACTION").await?;
        Ok(Transaction { connection })
    }

    /// Connections that are open and idle.
    pub fn idle(&self) -> u32 {
        u32::try_from(self.connections.num_idle()).unwrap_or(u32::MAX)
    }

    /// Connections that are open, or being opened.
    pub fn size(&self) -> u32 {
        self.connections.size()
    }

    /// Upper bound of [`Pool::size`].
    pub fn max(&self) -> u32 {
        self.connections.options().get_max_connections()
    }

    /// Closes all connections, within the limit of a ping each; nothing can be acquired any more.
    pub async fn close(&self) {
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
        // A connection in use is waited for by sqlx without limit; what is in use now was abandoned.
        if tokio::time::timeout(PING_LIMIT, self.connections.close()).await.is_err() {
            tracing::warn!("database connections are still in use");
        }
    }

    /// Learns from a statement's error that the server is the primary no more.
    pub(super) fn learn_from(&self, error: &sqlx::Error) {
        if is_read_only(error) {
            self.leave_server();
        }
    }

    /// Gives up all connections that are open now, in all pools to this server: the idle ones at once, the others before
    /// their next use.
    fn leave_server(&self) {
        {
            let mut left = self.shared.left.write();
            if left.is_some_and(|left| left.elapsed() < LEAVE_EVERY) {
                return;
            }
            *left = Some(Instant::now());
        }
        tracing::warn!("the database is read-only: its connections are closed, for new ones");
        for pool in &*self.shared.pools.lock() {
            for mut idle in (0..pool.num_idle()).map_while(|_| pool.try_acquire()) {
                idle.close_on_drop();
            }
        }
    }

    /// Pings the idle connections of all pools to this server, each of which is then handed back or closed.
    fn check_idle(&self) {
        let mut checked = self.shared.checked.lock();
        if checked.is_some_and(|at| at.elapsed() < CHECK_EVERY) {
            return;
        }
        *checked = Some(Instant::now());
        let pools = self.shared.pools.lock().clone();
        self.shared.tasks.spawn(async move {
            // Taken all at once: nobody is to get one of them untested.
            let idle = pools
                .iter()
                .flat_map(|pool| (0..pool.num_idle()).map_while(|_| pool.try_acquire()));
            let checks: Vec<_> = idle.map(|mut idle| hand_back(&mut idle)).collect();
            let checked = checks.len();
            let silent = join_all(checks).await.into_iter().filter(|answered| !answered).count();
            if silent > 0 {
                tracing::warn!(checked, silent, "idle database connections did not answer");
            }
        });
    }
}

/// Whether the server takes writes: it is no replica, and was not made read-only.
pub(super) async fn takes_writes(connection: &mut MySqlConnection) -> sqlx::Result<bool> {
    // Aurora's readers have only the last. As text: MariaDB 12 has other values than ON and OFF.
    let query = "SELECT CAST(@@GLOBAL.read_only AS CHAR), CAST(@@GLOBAL.innodb_read_only AS CHAR)";
    let (server, engine): (String, String) = sqlx::query_as(query).fetch_one(connection).await?;
    Ok([server, engine].iter().all(|value| matches!(value.as_str(), "OFF" | "0")))
}

/// Pings the connection and hands it back; closes it if there is no answer in time. Says whether there was one.
fn hand_back(connection: &mut PoolConnection<MySql>) -> impl Future<Output = bool> + Send + use<> {
    let returning = connection.return_to_pool();
    // Dropped, it closes the connection and gives its place back.
    async { tokio::time::timeout(PING_LIMIT, returning).await.is_ok() }
}

/// A connection of the pool. Dropped, it is handed back if its last statement was answered, as told by
/// [`PooledConnection::answered`]; else it is closed.
#[derive(Debug)]
pub struct PooledConnection {
    connection: PoolConnection<MySql>,
    pool: Pool,
    answered: bool,
}

impl PooledConnection {
    /// Tells the pool of an error of its last statement.
    pub fn failed(&self, error: &sqlx::Error) {
        self.pool.learn_from(error);
    }

    /// Its last statement was answered to the end, and no transaction is open.
    pub fn answered(&mut self) {
        self.answered = true;
    }

    fn answered_with<T>(&mut self, result: &sqlx::Result<T>) {
        self.answered = result.as_ref().err().is_none_or(leaves_usable);
    }
}

impl Deref for PooledConnection {
    type Target = MySqlConnection;

    fn deref(&self) -> &MySqlConnection {
        &self.connection
    }
}

/// For a statement, which counts as unanswered until [`PooledConnection::answered`].
impl DerefMut for PooledConnection {
    fn deref_mut(&mut self) -> &mut MySqlConnection {
        self.answered = false;
        &mut self.connection
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        if self.answered {
            let returning = hand_back(&mut self.connection);
            self.pool.shared.tasks.spawn(async move {
                if !returning.await {
                    tracing::warn!("a database connection did not answer and is closed");
                }
            });
            return;
        }
        // Closed in the background within a limit of sqlx's.
        self.connection.close_on_drop();
        self.pool.check_idle();
    }
}

/// An open transaction. To be ended by [`Transaction::commit`] or [`Transaction::rollback`]; dropped, it closes its
/// connection, so that the server rolls back.
#[derive(Debug)]
pub struct Transaction {
    connection: PooledConnection,
}

impl Transaction {
    /// Commits. After an error, whether it is committed is not known.
    pub async fn commit(mut self) -> sqlx::Result<()> {
        self.connection.execute("COMMIT").await?;
        self.connection.answered();
        Ok(())
    }

    /// Undoes everything.
    pub async fn rollback(mut self) -> sqlx::Result<()> {
        self.connection.execute("ROLLBACK").await?;
        self.connection.answered();
        Ok(())
    }
}

impl Deref for Transaction {
    type Target = MySqlConnection;

    fn deref(&self) -> &MySqlConnection {
        &self.connection
    }
}

impl DerefMut for Transaction {
    fn deref_mut(&mut self) -> &mut MySqlConnection {
        &mut self.connection
    }
}

type Step = Either<MySqlQueryResult, MySqlRow>;

/// Each call takes a connection, and hands it back once the statement was answered. Rows are read to the end first.
impl<'p> Executor<'p> for &'_ Pool {
    type Database = MySql;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, sqlx::Result<Step>>
    where
        'p: 'e,
        E: 'q + Execute<'q, MySql>,
    {
        let pool = self.clone();
        let all = async move {
            let mut steps = Vec::new();
            let result = async {
                let mut connection = pool.acquire().await?;
                let mut reading = connection.fetch_many(query);
                let mut result = Ok(());
                while let Some(step) = reading.next().await {
                    match step {
                        Ok(step) => steps.push(Ok(step)),
                        Err(error) => {
                            result = Err(error);
                            break;
                        }
                    }
                }
                drop(reading);
                connection.answered_with(&result);
                result
            };
            if let Err(error) = result.await {
                steps.push(Err(error));
            }
            stream::iter(steps)
        };
        Box::pin(stream::once(all).flatten())
    }

    fn fetch_optional<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxFuture<'e, sqlx::Result<Option<MySqlRow>>>
    where
        'p: 'e,
        E: 'q + Execute<'q, MySql>,
    {
        let pool = self.clone();
        Box::pin(async move {
            let mut connection = pool.acquire().await?;
            let result = connection.fetch_optional(query).await;
            connection.answered_with(&result);
            result
        })
    }

    fn prepare_with<'e, 'q: 'e>(
        self,
        sql: &'q str,
        parameters: &'e [MySqlTypeInfo],
    ) -> BoxFuture<'e, sqlx::Result<MySqlStatement<'q>>>
    where
        'p: 'e,
    {
        let pool = self.clone();
        Box::pin(async move {
            let mut connection = pool.acquire().await?;
            let result = connection.prepare_with(sql, parameters).await;
            connection.answered_with(&result);
            result
        })
    }

    fn describe<'e, 'q: 'e>(self, sql: &'q str) -> BoxFuture<'e, sqlx::Result<Describe<MySql>>>
    where
        'p: 'e,
    {
        let pool = self.clone();
        Box::pin(async move {
            let mut connection = pool.acquire().await?;
            let result = connection.describe(sql).await;
            connection.answered_with(&result);
            result
        })
    }
}
