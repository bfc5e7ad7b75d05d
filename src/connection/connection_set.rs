//! The connections of one pool: at most so many at once, and of those the idle ones. What is idle was answered to the end
//! and has no transaction open, which callers see to ([`super::pool`]).
//!
//! The driver's own pool pings each connection on its way back: one more round trip for each purchase, during which the
//! connection serves nobody. Here it is handed back without one. The last one that came back is the first to be used
//! again, so that only as many are busy as are needed.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sqlx::mysql::MySqlConnectOptions;
use sqlx::{Connection, Executor, MySqlConnection};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::server_check::takes_writes;

/// A connection is used for at most this long, then closed: what an address leads to changes.
const LONGEST_LIFE: Duration = Duration::from_secs(30 * 60);

/// The same where the server took no writes when the connection was opened: it may have been the primary before, and the
/// address will soon lead to another one. Those that only read would not notice.
const READ_ONLY_LIFE: Duration = Duration::from_millis(500);

/// Pauses between two tries to connect to a server that refuses connections, because it is being started: the first, and
/// the longest.
const REFUSED_PAUSES: (Duration, Duration) =
    (Duration::from_millis(10), Duration::from_millis(500));

/// What the connections of a set have in common.
pub(super) struct Settings {
    /// The server, and how to sign in.
    pub options: MySqlConnectOptions,
    /// Statements with which each connection begins.
    pub begin_with: Vec<String>,
    /// Most connections at once.
    pub max: u32,
    /// Longest wait for a connection.
    pub limit: Duration,
    /// A connection that was idle for longer is not used again.
    pub idle_limit: Duration,
}

/// The connections to one server.
pub(super) struct ConnectionSet {
    settings: Settings,
    /// One for each connection that is in use or being opened.
    permits: Arc<Semaphore>,
    /// The last one was used last.
    idle: Mutex<Vec<IdleConnection>>,
    /// When the opening of the last one began whose server took writes.
    last_to_primary: Mutex<Instant>,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Opened {
    pub raw: MySqlConnection,
    /// When its opening began.
    began: Instant,
    /// Whether the server took writes then.
    pub to_primary: bool,
}

struct IdleConnection {
    opened: Opened,
    since: Instant,
}

/// A connection in use. Dropped, it is closed, and the server rolls back what is open on it.
#[derive(Debug)]
pub(super) struct OpenConnection {
    pub opened: Opened,
    /// Gives its place back last.
    permit: OwnedSemaphorePermit,
}

impl fmt::Debug for ConnectionSet {
    /// Without the options, which have the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionSet").field("max", &self.max()).finish_non_exhaustive()
    }
}

/// Opens a connection and prepares it for use. While the server refuses connections it is tried again, without end.
///
/// # Errors
/// Every other failure.
///
/// # Cancellation
/// Dropped, it closes the connection.
pub(super) async fn open(
    options: &MySqlConnectOptions,
    begin_with: &[String],
) -> sqlx::Result<Opened> {
    let (mut pause, longest) = REFUSED_PAUSES;
    let (began, mut raw) = loop {
        let began = Instant::now();
        match MySqlConnection::connect_with(options).await {
            Err(sqlx::Error::Io(error))
                if error.kind() == std::io::ErrorKind::ConnectionRefused =>
            {
                tokio::time::sleep(pause).await;
                pause = longest.min(pause * 2);
            }
            connected => break (began, connected?),
        }
    };
    for statement in begin_with {
        raw.execute(statement.as_str()).await?;
    }
    let to_primary = takes_writes(&mut raw).await?;
    Ok(Opened { raw, began, to_primary })
}

impl Opened {
    /// For how long it may be used.
    fn life(&self) -> Duration {
        if self.to_primary { LONGEST_LIFE } else { READ_ONLY_LIFE }
    }
}

impl ConnectionSet {
    /// A set with `first` as its only connection.
    pub fn new(settings: Settings, first: Opened) -> Self {
        let permits = Arc::new(Semaphore::new(settings.max as usize));
        let last_to_primary = Mutex::new(first.began);
        let idle = Mutex::new(vec![IdleConnection { opened: first, since: Instant::now() }]);
        ConnectionSet { settings, permits, idle, last_to_primary }
    }

    /// An idle connection, or a new one; idle ones whose opening began when `is_current` says no are closed.
    ///
    /// # Errors
    /// [`sqlx::Error::PoolTimedOut`] after the limit, [`sqlx::Error::PoolClosed`], and why a connection could not be opened.
    ///
    /// # Cancellation
    /// Dropped, it takes nothing.
    pub async fn acquire(
        &self,
        is_current: impl Fn(Instant) -> bool,
    ) -> sqlx::Result<OpenConnection> {
        let permits = self.permits.clone();
        // Without a timer where a connection is free.
        if let Ok(permit) = permits.clone().try_acquire_owned()
            && let Some(opened) = self.pop(&is_current)
        {
            return Ok(OpenConnection { opened, permit });
        }
        let waiting = async {
            let permit = permits.acquire_owned().await.map_err(|_| sqlx::Error::PoolClosed)?;
            if let Some(opened) = self.pop(&is_current) {
                return Ok(OpenConnection { opened, permit });
            }
            let Settings { options, begin_with, .. } = &self.settings;
            let opened = open(options, begin_with).await?;
            if opened.to_primary {
                let mut last = self.last_to_primary.lock();
                *last = opened.began.max(*last);
            }
            Ok(OpenConnection { opened, permit })
        };
        // Boxed, because it is rare to open a connection, and every purchase would carry its size.
        let waited = tokio::time::timeout(self.settings.limit, Box::pin(waiting)).await;
        waited.unwrap_or(Err(sqlx::Error::PoolTimedOut))
    }

    fn pop(&self, is_current: impl Fn(Instant) -> bool) -> Option<Opened> {
        let (mut idle, now) = (self.idle.lock(), Instant::now());
        while let Some(IdleConnection { opened, since }) = idle.pop() {
            let fresh = now - opened.began < opened.life()
                && now - since < self.settings.idle_limit
                && is_current(opened.began);
            if fresh {
                return Some(opened);
            }
        }
        None
    }

    /// When the opening of the last connection began whose server took writes.
    pub fn last_to_primary(&self) -> Instant {
        *self.last_to_primary.lock()
    }

    /// Makes a connection idle, whose last statement was answered to the end, with no transaction open.
    pub fn give_back(&self, connection: OpenConnection) {
        let OpenConnection { opened, permit } = connection;
        let since = Instant::now();
        let mut idle = self.idle.lock();
        if !self.permits.is_closed() {
            idle.push(IdleConnection { opened, since });
        }
        // Those that are never needed any more are at the bottom.
        let unused =
            idle.first().is_some_and(|first| since - first.since > self.settings.idle_limit);
        let unused = unused.then(|| idle.remove(0));
        drop(idle);
        drop((unused, permit));
    }

    /// Takes all idle connections, as if they were in use.
    pub fn take_idle(&self) -> Vec<OpenConnection> {
        let mut taken = Vec::new();
        while let Ok(permit) = self.permits.clone().try_acquire_owned()
            && let Some(IdleConnection { opened, .. }) = self.idle.lock().pop()
        {
            taken.push(OpenConnection { opened, permit });
        }
        taken
    }

    /// Closes all idle connections, at once.
    pub fn drop_idle(&self) {
        let idle = std::mem::take(&mut *self.idle.lock());
        drop(idle);
    }

    /// Refuses new users, waits for the present ones for at most `limit`, and closes all connections within another
    /// `limit`; says whether all users had come back.
    ///
    /// # Cancellation
    /// Dropped, it may have closed some.
    pub async fn close(&self, limit: Duration) -> bool {
        let all = self.permits.acquire_many(self.settings.max);
        let came_back = tokio::time::timeout(limit, all).await.is_ok_and(|all| all.is_ok());
        self.permits.close();
        let idle = std::mem::take(&mut *self.idle.lock());
        let closing = idle.into_iter().map(|idle| idle.opened.raw.close());
        // What fails to say goodbye is closed by being dropped.
        tokio::time::timeout(limit, futures_util::future::join_all(closing)).await.ok();
        came_back
    }

    /// Connections that are idle.
    pub fn idle(&self) -> u32 {
        u32::try_from(self.idle.lock().len()).unwrap_or(u32::MAX)
    }

    /// Connections that are in use, or being opened.
    pub fn in_use(&self) -> u32 {
        let free = u32::try_from(self.permits.available_permits()).unwrap_or(u32::MAX);
        self.max().saturating_sub(free)
    }

    /// Upper bound of both together.
    pub fn max(&self) -> u32 {
        self.settings.max
    }
}
