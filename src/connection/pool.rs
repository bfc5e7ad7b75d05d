//! The pool of database connections: deadpool's, with a manager that says what becomes of a connection after its use.
//!
//! - A connection is handed back only if its last statement was answered, and then at once, without a ping. One whose
//!   statement was cut short by a time limit or an error is closed, and so the server rolls back what was open on it.
//! - A statement whose future was dropped, because a limit of its caller was over, is still at work in the server. Its
//!   connection keeps its place in the pool until it is answered, and is closed then. So callers that ask and go, again and
//!   again, have no more statements at work than the pool has connections.
//! - If no connection is free in time, the error is [`sqlx::Error::PoolTimedOut`], which says nothing of the server. If the
//!   server does not answer in time, to a statement or to a new connection, it is an I/O error.
//! - What broke one connection, a restart of the server or a middlebox that forgot its connections, has mostly broken the
//!   idle ones as well, and they are the next to be used. After an error without an answer they are closed, also those of
//!   other pools to the same server.
//! - A server that answers a write with "read-only" is no longer the primary, and the address leads, or soon will, to another
//!   one. No connection that was opened before is used again, in any pool: those that only read would read an old state
//!   for as long as they live. A new connection may still lead to the old server. So at its opening each connection is asked
//!   whether its server takes writes, and if not, it is used for half a second only.
//!
//! The driver's own pool pings each connection on its way back: one more round trip for each purchase. It opens its sockets
//! itself and gives no access to them, so neither keepalive nor the TCP user time-out can be set here; these rules
//! stand in their place, with a time limit for each statement (`Database::bounded`).

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use deadpool::Status;
use deadpool::managed::{Object, PoolError, QueueMode};
use futures_util::future::{join, join_all};
use sqlx::{Connection, MySqlConnection};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::task::TaskTracker;

use super::opener::{Opener, Shared};
use super::server_check::takes_writes;
use super::server_error::{leaves_usable, no_answer_in_time};
use crate::histogram::Histogram;

/// Longest wait for the end of the idle connections when the pool closes.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// The connections to the database. Cheap to clone.
#[derive(Clone)]
pub struct Pool {
    connections: deadpool::managed::Pool<Opener>,
    /// A permit for each connection that there may be. Waited for here, so that this wait can be told from that for the server.
    places: Arc<Semaphore>,
    pub(super) shared: Arc<Shared>,
    limit: Duration,
    after_use: Arc<AfterUse>,
}

/// What the connections need when they are dropped.
#[derive(Default)]
struct AfterUse {
    /// How long a connection was in use, each time.
    held: Histogram,
    /// Wait for the answers to statements whose futures were dropped.
    abandoned: TaskTracker,
}

impl Pool {
    /// A pool of at most `max` connections, which are opened only as they are needed. `limit` is the longest wait for one.
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
            places: Arc::new(Semaphore::new(max as usize)),
            shared,
            limit,
            after_use: Arc::default(),
        }
    }

    /// A pool to the same server.
    pub(super) fn beside(&self, max: u32) -> Self {
        Pool::new(self.connections.manager().clone(), max, self.limit)
    }

    /// A pool to the same server, whose statements only read.
    pub(super) fn for_reads(&self, max: u32) -> Self {
        let opener = self.connections.manager().for_reads(self.limit);
        Pool::new(opener, max, self.limit)
    }

    /// Until when a step that begins now has to be answered.
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.limit
    }

    /// A connection, as soon as one is free.
    ///
    /// # Errors
    /// [`sqlx::Error::PoolTimedOut`] where none is free at `deadline`; an I/O error where the server did not answer by then, or
    /// refuses connections.
    pub async fn acquire(&self, deadline: Instant) -> sqlx::Result<PooledConnection> {
        let place = timeout_at(deadline, self.places.clone().acquire_owned()).await;
        // The callers that have a place may all be opening connections, in vain: then the error says so.
        let place = place
            .map_err(|_| self.shared.timed_out())?
            .map_err(|_| sqlx::Error::PoolClosed)?;
        let began = Instant::now();
        match timeout_at(deadline, self.connections.get()).await {
            Ok(Ok(connection)) => Ok(PooledConnection {
                connection: Some(connection),
                state: State::Answered,
                after_use: self.after_use.clone(),
                limit: self.limit,
                place: Some(place),
            }),
            Ok(Err(PoolError::Backend(error))) => {
                Err(error).inspect_err(|e| self.shared.learn_from(e))
            }
            // Only a closed pool is left: it has no time limits of its own, and no hooks.
            Ok(Err(_)) => Err(sqlx::Error::PoolClosed),
            Err(_) => Err(match self.shared.timed_out() {
                sqlx::Error::PoolTimedOut => self.unanswered(began),
                why_not_opened => why_not_opened,
            }),
        }
    }

    /// The error of a step that began at `began` and is waited for no longer.
    pub(super) fn unanswered(&self, began: Instant) -> sqlx::Error {
        let error = no_answer_in_time();
        // A step that was given up early, because the time of its request was over, says nothing of the server.
        if began.elapsed() * 2 >= self.limit {
            self.shared.learn_from(&error);
        }
        error
    }

    /// A connection to a server that takes writes. Only such a server says for certain that something is not there: a replica
    /// may yet apply what the primary has committed, and become the primary itself.
    ///
    /// # Errors
    /// As [`Pool::acquire`]; and where the server is read-only.
    pub async fn acquire_writable(&self, deadline: Instant) -> sqlx::Result<PooledConnection> {
        let connection = self.acquire(deadline).await?;
        self.writable(connection, deadline).await
    }

    /// A connection to write on. If its server was read-only when the connection was opened, the server is asked again, and
    /// refused if it still is. The service's user may have the right to write on a read-only replica all the same, and the
    /// primary would not have that change.
    ///
    /// # Errors
    /// As [`Pool::acquire_writable`].
    pub async fn acquire_for_writes(&self, deadline: Instant) -> sqlx::Result<PooledConnection> {
        let connection = self.acquire(deadline).await?;
        if connection.to_primary() {
            Ok(connection)
        } else {
            self.writable(connection, deadline).await
        }
    }

    async fn writable(
        &self,
        mut connection: PooledConnection,
        deadline: Instant,
    ) -> sqlx::Result<PooledConnection> {
        let began = Instant::now();
        let answer = match timeout_at(deadline, takes_writes(&mut connection)).await {
            Ok(answer) => answer.inspect_err(|error| self.shared.learn_from(error)),
            Err(_) => Err(self.unanswered(began)),
        };
        connection.answered_with(&answer);
        if answer? {
            return Ok(connection);
        }
        self.shared.leave_server();
        Err(sqlx::Error::Protocol("the server is read-only".to_owned()))
    }

    /// How long its connections were in use, each time.
    pub fn held(&self) -> &Histogram {
        &self.after_use.held
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
        self.places.close();
        self.connections.close();
        self.after_use.abandoned.close();
        let closing = join_all(idle.into_iter().map(|opened| opened.raw.close()));
        let closing_all = join(closing, self.after_use.abandoned.wait());
        // Dropping closes those that did not answer.
        if timeout(CLOSE_LIMIT, closing_all).await.is_err() {
            tracing::debug!("the database did not answer the end of its connections");
        }
    }
}

const PRESENT: &str = "a pooled connection has its connection until it is dropped";

/// A connection of the pool. Dropped, it is handed back if its last statement was answered, as told by
/// [`PooledConnection::answered`]; else it is closed, now or once the server has answered.
pub struct PooledConnection {
    /// There until it is dropped.
    connection: Option<Object<Opener>>,
    state: State,
    after_use: Arc<AfterUse>,
    /// The longest wait for an answer that nobody asks for any more.
    limit: Duration,
    /// Given up last.
    place: Option<OwnedSemaphorePermit>,
}

/// What became of a connection's last statement.
#[derive(Clone, Copy, PartialEq)]
enum State {
    Answered,
    /// It is under way, or its future was dropped before its end.
    Running,
    /// It was given up, or failed in a way after which the connection is of no use.
    GivenUp,
}

impl PooledConnection {
    /// Its last statement was answered to the end, and no transaction is open.
    pub fn answered(&mut self) {
        self.state = State::Answered;
    }

    /// Whether the server took writes when it was opened.
    fn to_primary(&self) -> bool {
        self.connection.as_ref().expect(PRESENT).to_primary
    }

    /// Its last statement, outside any transaction, had this result.
    pub fn answered_with<T>(&mut self, result: &sqlx::Result<T>) {
        self.state = match result {
            Err(error) if !leaves_usable(error) => State::GivenUp,
            _ => State::Answered,
        };
    }

    /// Its last statement is waited for no longer.
    pub fn give_up(&mut self) {
        self.state = State::GivenUp;
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
        self.state = State::Running;
        &mut self.connection.as_mut().expect(PRESENT).raw
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        let Some(mut connection) = self.connection.take() else {
            return;
        };
        let place = self.place.take();
        if self.state == State::Running
            && let Ok(runtime) = Handle::try_current()
        {
            let limit = self.limit;
            let after_use = self.after_use.clone();
            runtime.spawn(self.after_use.abandoned.track_future(async move {
                // The server answers in order, so the statement at work first. The answer to the ping makes no difference.
                timeout(limit, connection.raw.ping()).await.ok();
                after_use
                    .held
                    .add_duration(Object::metrics(&connection).last_used());
                drop(Object::take(connection));
                drop(place);
            }));
            return;
        }
        let used_for = Object::metrics(&connection).last_used();
        self.after_use.held.add_duration(used_for);
        if self.state == State::Answered {
            drop(connection);
        } else {
            // Taken from the pool, so that dropping closes it.
            drop(Object::take(connection));
        }
        drop(place);
    }
}
