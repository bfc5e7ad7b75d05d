//! The pool of database connections: deadpool's, with a manager that says what becomes of a connection after its use.
//!
//! - A connection is handed back only if its last statement was answered, and then at once, without a ping. One whose
//!   statement was cut short, by a time limit or because its future was dropped, is closed, and so the server rolls back
//!   what was open on it.
//! - What broke one connection, a restart of the server or a middlebox that forgot its connections, has mostly broken the
//!   idle ones as well, and they are the next to be used. After an error without an answer they are closed, also those of
//!   other pools to the same server.
//! - A server that answers a write with "read-only" is the primary no more, and the address leads, or soon will, to another
//!   one. No connection that was opened before is used again, in any pool: those that only read would read an old state
//!   for as long as they live. One that is opened meanwhile, and may still lead there, is used for half a second: each is
//!   asked at its opening whether its server takes writes.
//!
//! The driver's own pool pings each connection on its way back: one more round trip for each purchase. It opens its sockets
//! itself and gives no access to them, so neither keepalive nor the TCP user time-out can be set here; the three rules
//! stand in their place, with a time limit for each statement (`Database::bounded`).

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use deadpool::Status;
use deadpool::managed::{Object, PoolError, QueueMode};
use futures_util::future::join_all;
use sqlx::{Connection, MySqlConnection};

use super::opener::{Opener, Shared};
use super::server_check::takes_writes;
use super::server_error::leaves_usable;
use crate::histogram::Histogram;

/// Longest wait for the end of the idle connections when the pool closes.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// The connections to the database. Cheap to clone.
#[derive(Clone)]
pub struct Pool {
    connections: deadpool::managed::Pool<Opener>,
    pub(super) shared: Arc<Shared>,
    /// For how long its connections were in use, each time.
    pub held: Arc<Histogram>,
    limit: Duration,
}

impl Pool {
    /// A pool of at most `max` connections, and of those that are opened only what is needed. `limit` is the longest wait
    /// for one.
    pub(super) fn new(opener: Opener, max: u32, limit: Duration) -> Self {
        let shared = opener.shared.clone();
        // The last one that came back is the first to be used again, so that only as many are busy as are needed.
        let builder = deadpool::managed::Pool::builder(opener);
        let connections = builder
            .max_size(max as usize)
            .queue_mode(QueueMode::Lifo)
            .build();
        let connections = connections.expect("a pool without time limits needs no runtime");
        shared.pools.lock().push(connections.weak());
        Pool {
            connections,
            shared,
            held: Arc::default(),
            limit,
        }
    }

    /// A pool to the same server.
    pub(super) fn beside(&self, max: u32) -> Self {
        Pool::new(self.connections.manager().clone(), max, self.limit)
    }

    /// A connection, as soon as one is free. Waits for at most the pool's limit; then the error is that of [`Pool::timed_out`].
    pub async fn acquire(&self) -> sqlx::Result<PooledConnection> {
        match tokio::time::timeout(self.limit, self.connections.get()).await {
            Ok(Ok(connection)) => {
                let (connection, held) = (Some(connection), self.held.clone());
                Ok(PooledConnection {
                    connection,
                    held,
                    answered: true,
                })
            }
            Ok(Err(PoolError::Backend(error))) => Err(error),
            Ok(Err(PoolError::Closed)) => Err(sqlx::Error::PoolClosed),
            Ok(Err(_)) | Err(_) => Err(self.timed_out()),
        }
    }

    /// The error of what was not done in time: why the newest connection could not be opened, or
    /// [`sqlx::Error::PoolTimedOut`].
    pub fn timed_out(&self) -> sqlx::Error {
        self.shared.timed_out()
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
    pub async fn acquire_for_writes(&self) -> sqlx::Result<PooledConnection> {
        let connection = self.acquire().await?;
        if connection.to_primary() {
            Ok(connection)
        } else {
            self.writable(connection).await
        }
    }

    async fn writable(&self, mut connection: PooledConnection) -> sqlx::Result<PooledConnection> {
        if takes_writes(&mut connection).await? {
            connection.answered();
            return Ok(connection);
        }
        self.shared.leave_server();
        Err(sqlx::Error::Protocol("the server is read-only".to_owned()))
    }

    /// Its connections at this moment: those that are idle, and those in use or being opened; and how many there may be.
    pub fn usage(&self) -> [usize; 3] {
        let Status {
            max_size,
            size,
            available,
            ..
        } = self.connections.status();
        [available, size.saturating_sub(available), max_size]
    }

    /// Closes all connections, those in use when they are dropped; nothing can be acquired any more.
    pub async fn close(&self) {
        let idle = self.connections.retain(|_, _| false).removed;
        self.connections.close();
        let closing = join_all(idle.into_iter().map(|opened| opened.raw.close()));
        // Dropping closes those that did not answer.
        if tokio::time::timeout(CLOSE_LIMIT, closing).await.is_err() {
            tracing::debug!("the database did not answer the end of its connections");
        }
    }
}

const PRESENT: &str = "a pooled connection has its connection until it is dropped";

/// A connection of the pool. Dropped, it is handed back if its last statement was answered, as told by
/// [`PooledConnection::answered`]; else it is closed.
pub struct PooledConnection {
    /// There until it is dropped.
    connection: Option<Object<Opener>>,
    held: Arc<Histogram>,
    answered: bool,
}

impl PooledConnection {
    /// Its last statement was answered to the end, and no transaction is open.
    pub fn answered(&mut self) {
        self.answered = true;
    }

    /// Whether the server took writes when it was opened.
    fn to_primary(&self) -> bool {
        self.connection.as_ref().expect(PRESENT).to_primary
    }

    /// Its last statement, outside any transaction, had this result.
    pub fn answered_with<T>(&mut self, result: &sqlx::Result<T>) {
        self.answered = result.as_ref().err().is_none_or(leaves_usable);
    }
}

impl Deref for PooledConnection {
    type Target = MySqlConnection;

    fn deref(&self) -> &MySqlConnection {
        &self.connection.as_ref().expect(PRESENT).raw
    }
}

/// For a statement, which counts as unanswered until [`PooledConnection::answered`].
impl DerefMut for PooledConnection {
    fn deref_mut(&mut self) -> &mut MySqlConnection {
        self.answered = false;
        &mut self.connection.as_mut().expect(PRESENT).raw
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else {
            return;
        };
        self.held
            .add_duration(Object::metrics(&connection).last_used());
        let unanswered = Some(connection).filter(|_| !self.answered);
        // Taken from the pool, so that dropping closes it.
        drop(unanswered.map(Object::take));
    }
}
