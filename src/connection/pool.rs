//! The pool of database connections. It decides what becomes of a connection after its use:
//!
//! - A connection is handed back only if its last statement was answered, and then at once, without a ping. One whose
//!   statement was cut short, by a time limit or because its future was dropped, is closed, and so the server rolls back
//!   what was open on it.
//! - What broke one connection, a restart of the server or a middlebox that forgot its connections, has mostly broken the
//!   idle ones as well, and they are the next to be used. They are pinged at once, also those of other pools to the same
//!   server, and closed if they do not answer.
//! - A server that answers a write with "read-only" is the primary no more, and the address leads, or soon will, to another
//!   one. No connection that was opened before is used again, in any pool: those that only read would read an old state
//!   for as long as they live. One that is opened meanwhile, and may still lead there, is used for half a second: each is
//!   asked at its opening whether its server takes writes.
//!
//! The driver opens its sockets itself and gives no access to them, so neither keepalive nor the TCP user time-out can be set
//! here; the three rules stand in their place, with a time limit for each statement (`Database::bounded`).

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::{self, BoxStream};
use parking_lot::{Mutex, RwLock};
use sqlx::mysql::{MySqlArguments, MySqlQueryResult, MySqlRow, MySqlStatement, MySqlTypeInfo};
use sqlx::query::Query;
use sqlx::{Connection, Describe, Either, Execute, Executor, MySql, MySqlConnection};
use tokio_util::task::TaskTracker;

use super::connection_set::{ConnectionSet, OpenConnection};
use super::server_check::takes_writes;
use super::server_error::{is_read_only, leaves_usable};

/// Longest wait for the answer to a ping before a connection is found dead, and for those in use when the pool closes.
const PING_LIMIT: Duration = Duration::from_secs(1);

/// The idle connections are pinged at most this often.
const CHECK_EVERY: Duration = Duration::from_millis(250);

/// The connections to the database. Cheap to clone. As an [`Executor`] it runs one statement on a connection of its own, which
/// should not write: see [`Pool::change`].
#[derive(Clone, Debug)]
pub struct Pool {
    connections: Arc<ConnectionSet>,
    shared: Arc<Shared>,
}

/// What the pools to one server share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pools: Mutex<Vec<Arc<ConnectionSet>>>,
    /// When the idle connections were last pinged.
    checked: Mutex<Option<Instant>>,
    /// When the server was last found read-only.
    left: RwLock<Option<Instant>>,
    /// Idle connections that are being pinged.
    tasks: TaskTracker,
}

impl Shared {
    /// What the pools beside this one share.
    pub(super) fn with(beside: Option<&Pool>) -> Arc<Self> {
        beside.map(|pool| pool.shared.clone()).unwrap_or_default()
    }

    /// Whether a connection whose opening began then may be used: the server was not found read-only since.
    fn is_current(&self, began: Instant) -> bool {
        self.left.read().is_none_or(|left| left < began)
    }
}

impl Pool {
    /// A pool of these connections.
    pub(super) fn new(connections: ConnectionSet, shared: Arc<Shared>) -> Self {
        let connections = Arc::new(connections);
        shared.pools.lock().push(connections.clone());
        Pool { connections, shared }
    }

    /// A connection, as soon as one is free. Waits for at most the pool's limit; then the error is
    /// [`sqlx::Error::PoolTimedOut`].
    pub async fn acquire(&self) -> sqlx::Result<PooledConnection> {
        let is_current = |began| self.shared.is_current(began);
        let connection = Some(self.connections.acquire(is_current).await?);
        Ok(PooledConnection { connection, pool: self.clone(), answered: true })
    }

    /// A connection to a server that takes writes. Only such a server says for certain that something is not there: a replica
    /// may yet apply what the primary has committed, and become the primary itself.
    ///
    /// # Errors
    /// As [`Pool::acquire`]; and where the server is read-only.
    pub async fn acquire_writable(&self) -> sqlx::Result<PooledConnection> {
        self.writable(self.acquire().await?).await
    }

    /// A connection to write on: not to a server that was read-only when the connection was opened, and still is. What a user
    /// with the right to write there all the same changed on a replica, the primary would not have.
    ///
    /// # Errors
    /// As [`Pool::acquire_writable`].
    pub async fn acquire_for_writes(&self) -> sqlx::Result<PooledConnection> {
        let connection = self.acquire().await?;
        if connection.to_primary() { Ok(connection) } else { self.writable(connection).await }
    }

    async fn writable(&self, mut connection: PooledConnection) -> sqlx::Result<PooledConnection> {
        if takes_writes(&mut connection).await? {
            connection.answered();
            return Ok(connection);
        }
        self.leave_server();
        Err(sqlx::Error::Protocol("the server is read-only".to_owned()))
    }

    /// Runs one statement that writes, on a connection [for writes](Pool::acquire_for_writes).
    pub async fn change(
        &self,
        statement: Query<'_, MySql, MySqlArguments>,
    ) -> sqlx::Result<MySqlQueryResult> {
        let mut connection = self.acquire_for_writes().await?;
        let result = statement.execute(&mut *connection).await;
        connection.answered_with(&result);
        result
    }

    /// A connection with an open transaction, to write in.
    pub async fn begin(&self) -> sqlx::Result<Transaction> {
        let mut connection = self.acquire_for_writes().await?;
        connection.execute("START TRANSACTION").await?;
        Ok(Transaction { connection })
    }

    /// Connections that are open and idle.
    pub fn idle(&self) -> u32 {
        self.connections.idle()
    }

    /// Connections that are in use, or being opened.
    pub fn in_use(&self) -> u32 {
        self.connections.in_use()
    }

    /// Upper bound of both together.
    pub fn max(&self) -> u32 {
        self.connections.max()
    }

    /// Closes all connections; nothing can be acquired any more. Takes at most three times the limit of a ping.
    pub async fn close(&self) {
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
        if !self.connections.close(PING_LIMIT).await {
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
        let pools = self.shared.pools.lock();
        {
            let mut left = self.shared.left.write();
            // While the server stays read-only each write says so again; then no connection is used for long as it is.
            let is_known = |left| pools.iter().all(|pool| pool.last_to_primary() <= left);
            if left.is_some_and(is_known) {
                return;
            }
            *left = Some(Instant::now());
        }
        tracing::warn!("the database is read-only: its connections are closed, for new ones");
        pools.iter().for_each(|pool| pool.drop_idle());
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
            let idle: Vec<_> = pools
                .iter()
                .flat_map(|pool| pool.take_idle().into_iter().map(move |idle| (pool, idle)))
                .collect();
            let checked = idle.len();
            let answers = join_all(idle.into_iter().map(|(pool, idle)| ping(pool, idle))).await;
            let silent = answers.into_iter().filter(|answered| !answered).count();
            if silent > 0 {
                tracing::warn!(checked, silent, "idle database connections did not answer");
            }
        });
    }
}

/// Pings the connection and hands it back; closes it if there is no answer in time. Says whether there was one.
async fn ping(pool: &ConnectionSet, mut connection: OpenConnection) -> bool {
    let answer = tokio::time::timeout(PING_LIMIT, connection.opened.raw.ping()).await;
    let answered = answer.is_ok_and(|answer| answer.is_ok());
    if answered {
        pool.give_back(connection);
    }
    answered
}

/// Only dropping takes it.
const PRESENT: &str = "a pooled connection has its connection until it is dropped";

/// A connection of the pool. Dropped, it is handed back if its last statement was answered, as told by
/// [`PooledConnection::answered`]; else it is closed.
#[derive(Debug)]
pub struct PooledConnection {
    /// There until it is dropped.
    connection: Option<OpenConnection>,
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

    /// Whether the server took writes when it was opened.
    fn to_primary(&self) -> bool {
        self.connection.as_ref().expect(PRESENT).opened.to_primary
    }

    /// Its last statement, outside any transaction, had this result.
    pub fn answered_with<T>(&mut self, result: &sqlx::Result<T>) {
        self.answered = result.as_ref().err().is_none_or(leaves_usable);
    }
}

impl Deref for PooledConnection {
    type Target = MySqlConnection;

    fn deref(&self) -> &MySqlConnection {
        &self.connection.as_ref().expect(PRESENT).opened.raw
    }
}

/// For a statement, which counts as unanswered until [`PooledConnection::answered`].
impl DerefMut for PooledConnection {
    fn deref_mut(&mut self) -> &mut MySqlConnection {
        self.answered = false;
        &mut self.connection.as_mut().expect(PRESENT).opened.raw
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        let connection = self.connection.take();
        if !self.answered {
            // Closed by being dropped here.
            self.pool.check_idle();
        } else if let Some(connection) = connection {
            self.pool.connections.give_back(connection);
        }
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
