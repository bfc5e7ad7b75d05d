//! [`Opener`]: opens connections to the database, and says which may be used again. What is learnt of the server through one
//! pool holds for all pools to it.

use std::io;
use std::io::ErrorKind::ConnectionRefused;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backon::{ExponentialBuilder, Retryable};
use chrono::NaiveDateTime;
use deadpool::managed::{Manager, Metrics, RecycleError, RecycleResult, WeakPool};
use parking_lot::{Mutex, RwLock};
use sqlx::mysql::MySqlConnectOptions;
use sqlx::{Connection, Executor, MySqlConnection};

use super::database_clock::DatabaseClock;
use super::product::Product;
use super::server_check::takes_writes;
use super::server_error::is_read_only;

/// How long a statement waits for a row lock before the database gives up on it (error 1205).
/// The server's default of 50 s is longer than any buyer waits. Ours is shorter than the default time limit of a step, so
/// that the server's error, which names the cause, comes before we close the connection.
const LOCK_WAIT: Duration = Duration::from_secs(1);

/// Seconds after which the server ends a transaction in which its client sends nothing, and so releases its rows: the
/// client may have been stopped or cut off. Longer than anything that is waited for between two statements.
const IDLE_TRANSACTION_SECONDS: u32 = 5;

/// The same on MySQL, whose only such limit is for connections that send nothing, in a transaction or not.
const MYSQL_WAIT_SECONDS: u32 = 30;

/// On OceanBase a transaction ends after so many times the limit of a step, whatever its client does. No purchase's transaction
/// takes longer (`ServeConfig::commits_within`). OceanBase also has a limit for idle transactions, but it did not end one
/// within a minute: the row of a sale stayed locked by a connection that was cut off.
const STEPS_OF_TRANSACTION: u32 = 5;

/// The statements with which a session begins, whatever the server's defaults are. Of the two comments each product executes
/// its own: MariaDB skips those with versions from 50700 to 99999, and MySQL those that begin with an M. `sql_safe_updates`
/// guards people who write statements by hand. Where it is on, the server refuses to change a few rows of a small table by
/// their ids, because it would read the whole table for that.
///
/// On OceanBase the wait for a lock ends within half of a step's time limit. There a wait goes on after its connection was
/// closed, and the row that it then gets stays locked until the transaction's time is over.
fn begin_with(product: Product, step_limit: Duration) -> [String; 2] {
    let limits = match product {
        Product::MariaDb | Product::MySql => format!(
            "innodb_lock_wait_timeout = {} \
             /*M!100300 , idle_transaction_timeout = {IDLE_TRANSACTION_SECONDS}, \
             idle_write_transaction_timeout = {IDLE_TRANSACTION_SECONDS} */ \
             /*!50700 , wait_timeout = {MYSQL_WAIT_SECONDS} */",
            LOCK_WAIT.as_secs()
        ),
        Product::OceanBase => format!(
            "ob_trx_lock_timeout = {}, ob_trx_timeout = {}",
            LOCK_WAIT.min(step_limit / 2).as_micros(),
            (step_limit * STEPS_OF_TRANSACTION).as_micros()
        ),
    };
    // The default, REPEATABLE READ, takes gap locks on which a sale's inserts deadlock.
    [
        format!("SET SESSION autocommit = 1, sql_safe_updates = 0, {limits}"),
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED".to_owned(),
    ]
}

/// What a session that only reads begins with besides. The server ends a statement no later than its caller stops waiting, so
/// no more statements are at work than there are connections. The wait for a table has a limit of its own, in whole seconds.
fn read_limits(product: Product, limit: Duration) -> String {
    if product == Product::OceanBase {
        return format!("SET SESSION ob_query_timeout = {}", limit.as_micros());
    }
    format!(
        "SET SESSION lock_wait_timeout = {} \
         /*M!100101 , max_statement_time = {:.3} */ /*!50708 , max_execution_time = {} */",
        limit.as_secs_f64().ceil().max(1.0),
        limit.as_secs_f64(),
        limit.as_millis()
    )
}

/// A connection that was idle for longer is not used again: something between here and the server may have forgotten it.
const IDLE_LIMIT: Duration = Duration::from_secs(10 * 60);

/// The same on MySQL, whose `wait_timeout` is about to close it.
const MYSQL_IDLE_LIMIT: Duration = Duration::from_secs(20);

/// A connection is used for at most this long, then closed: the server that the address leads to may have changed.
const LONGEST_LIFE: Duration = Duration::from_secs(30 * 60);

/// The same where the server took no writes when the connection was opened: it may have been the primary before, and the
/// address will soon lead to another one. Those that only read would not notice.
const READ_ONLY_LIFE: Duration = Duration::from_millis(500);

/// Pauses between two tries to connect to a server that refuses connections, because it is being started.
const REFUSED_PAUSES: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(10))
    .with_max_delay(Duration::from_millis(500))
    .without_max_times();

/// Shortest time between two closings of all idle connections because one broke.
const CLOSE_EVERY: Duration = Duration::from_millis(250);

/// How long a failure to open a connection is given as the reason why none is free. Longer than the pause before the next try.
const EXPLAINS_FOR: Duration = Duration::from_secs(1);

/// How connections are opened, and how long they are used.
#[derive(Clone)]
pub(super) struct Opener {
    /// The server, and how to sign in.
    pub options: MySqlConnectOptions,
    pub product: Product,
    /// The time limit of a step.
    pub step_limit: Duration,
    /// The longest time of a statement, where the connections are for reads.
    pub read_limit: Option<Duration>,
    pub shared: Arc<Shared>,
}

impl Opener {
    /// The same server, for connections that only read.
    pub fn for_reads(&self, limit: Duration) -> Opener {
        Opener {
            read_limit: Some(limit),
            ..self.clone()
        }
    }

    /// Opens a connection, as soon as the server accepts one; returns it with the time at which the last try began.
    async fn connect(&self) -> sqlx::Result<(Instant, MySqlConnection)> {
        (|| self.try_to_connect())
            .retry(REFUSED_PAUSES)
            .when(is_refused)
            .await
    }

    async fn try_to_connect(&self) -> sqlx::Result<(Instant, MySqlConnection)> {
        let began = Instant::now();
        let connected = MySqlConnection::connect_with(&self.options).await;
        self.shared.learn_from_opening(&connected);
        Ok((began, connected?))
    }
}

/// Whether nothing listens at the server's address.
fn is_refused(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Io(error) if error.kind() == ConnectionRefused)
}

/// A connection.
pub(super) struct Opened {
    pub raw: MySqlConnection,
    /// When its opening began.
    began: Instant,
    /// Whether the server took writes then.
    pub to_primary: bool,
}

/// What the pools to one server share.
#[derive(Default)]
pub(super) struct Shared {
    pub pools: Mutex<Vec<WeakPool<Opener>>>,
    state: RwLock<ServerState>,
    /// The server's clock, as it was last told: each connection asks at its opening, and some statements ask as well.
    pub clock: DatabaseClock,
    /// Why the newest connection could not be opened; none where it could.
    not_opened: Mutex<Option<NotOpened>>,
}

struct NotOpened {
    at: Instant,
    kind: io::ErrorKind,
    text: String,
}

#[derive(Default)]
struct ServerState {
    /// When it was last found read-only.
    read_only: Option<Instant>,
    /// When the opening of the last connection began on which it took writes.
    primary: Option<Instant>,
    /// When the idle connections were last closed for one that broke.
    closed_idle: Option<Instant>,
}

impl Shared {
    fn close_idle(&self) {
        let pools = self.pools.lock();
        pools.iter().filter_map(WeakPool::upgrade).for_each(|pool| {
            pool.retain(|_, _| false);
        });
    }

    /// Learns from a statement's error that the server is the primary no more, or does not answer.
    pub fn learn_from(&self, error: &sqlx::Error) {
        if is_read_only(error) {
            self.leave_server();
        } else if matches!(error, sqlx::Error::Io(_)) {
            self.connection_broke();
        }
    }

    /// The error of a step that did not end in time. If the newest try to open a connection has just failed, the error says
    /// why; otherwise it is [`sqlx::Error::PoolTimedOut`].
    pub fn timed_out(&self) -> sqlx::Error {
        let not_opened = self.not_opened.lock();
        let newest = not_opened
            .as_ref()
            .filter(|newest| newest.at.elapsed() < EXPLAINS_FOR);
        newest.map_or(sqlx::Error::PoolTimedOut, |newest| {
            io::Error::new(newest.kind, format!("no connection: {}", newest.text)).into()
        })
    }

    /// Keeps why a connection could not be opened, or that the newest one could.
    fn learn_from_opening<T>(&self, result: &sqlx::Result<T>) {
        let not_opened = result.as_ref().err().map(|error| NotOpened {
            at: Instant::now(),
            kind: match error {
                sqlx::Error::Io(error) => error.kind(),
                _ => io::ErrorKind::Other,
            },
            text: error.to_string(),
        });
        *self.not_opened.lock() = not_opened;
    }

    /// Closes the idle connections: what broke one has mostly broken them, too.
    fn connection_broke(&self) {
        let mut state = self.state.write();
        if state
            .closed_idle
            .is_none_or(|at| at.elapsed() >= CLOSE_EVERY)
        {
            state.closed_idle = Some(Instant::now());
            drop(state);
            self.close_idle();
        }
    }

    /// Gives up all connections that are open now, in all pools to this server: the idle ones at once, the others before
    /// their next use.
    pub fn leave_server(&self) {
        let mut state = self.state.write();
        // While the server stays read-only, each write says so again. The connections since then are used for a moment only.
        if state.read_only.is_some() && state.primary <= state.read_only {
            return;
        }
        state.read_only = Some(Instant::now());
        drop(state);
        tracing::warn!("the database is read-only: its connections are closed, for new ones");
        self.close_idle();
    }
}

impl Manager for Opener {
    type Type = Opened;
    type Error = sqlx::Error;

    /// Opens a connection and prepares it for use. While the server refuses connections it is tried again, without end.
    /// Boxed, because it is rare, and every purchase would carry its size.
    fn create(&self) -> impl Future<Output = sqlx::Result<Opened>> + Send {
        Box::pin(async {
            let (began, mut raw) = self.connect().await?;
            let begin = begin_with(self.product, self.step_limit).into_iter().chain(
                self.read_limit
                    .map(|limit| read_limits(self.product, limit)),
            );
            for statement in begin {
                raw.execute(statement.as_str()).await?;
            }
            let now: NaiveDateTime = sqlx::query_scalar("SELECT UTC_TIMESTAMP(6)")
                .fetch_one(&mut raw)
                .await?;
            self.shared.clock.set(now.and_utc());
            let to_primary = takes_writes(&mut raw).await?;
            if to_primary {
                let mut state = self.shared.state.write();
                state.primary = state.primary.max(Some(began));
            }
            Ok(Opened {
                raw,
                began,
                to_primary,
            })
        })
    }

    /// Refuses a connection that is too old, was idle for too long, or was opened before the server was found read-only.
    async fn recycle(&self, opened: &mut Opened, metrics: &Metrics) -> RecycleResult<sqlx::Error> {
        let life = if opened.to_primary {
            LONGEST_LIFE
        } else {
            READ_ONLY_LIFE
        };
        let idle_limit = match self.product {
            Product::MySql => MYSQL_IDLE_LIMIT,
            Product::MariaDb | Product::OceanBase => IDLE_LIMIT,
        };
        let is_current = self
            .shared
            .state
            .read()
            .read_only
            .is_none_or(|at| at < opened.began);
        if is_current && opened.began.elapsed() < life && metrics.last_used() < idle_limit {
            Ok(())
        } else {
            Err(RecycleError::message("its time is over"))
        }
    }
}
