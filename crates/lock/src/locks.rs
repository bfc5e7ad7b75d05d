//! [`Locks`]: the entry point of the crate, and the background tasks it starts. The constructors of
//! the locks (`locks.lock(..)`, `locks.fair(..)`, …) are with their kinds.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis_link::Server;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::DropGuard;

use crate::config::LockConfig;
use crate::connection::command_connection::CommandConnection;
use crate::connection::refusals::ChannelRefusals;
use crate::error::Error;
use crate::name::Name;
use crate::owner::Owner;
use crate::state::cleanup_queue::{self, CleanupJobs, CleanupQueue};
use crate::state::shared::Shared;
use crate::stats::LockStats;
use crate::tasks::subscriber;
use crate::tasks::supervise::supervise;
use crate::tasks::watchdog;

/// The locks of one process on one Redis. Cheap to clone; one per process and Redis is enough.
///
/// Connections and background tasks end when the last handle, lock and guard are dropped, or at
/// [`shutdown`](Self::shutdown). The tasks renew locks and wake waiters. They run on the runtime on
/// which the `Locks` was made. If that runtime has ended, as between tests that share a `static`, the
/// next acquire starts them again on its own runtime, and so does the next guard that is released or
/// dropped. What the tasks were releasing when their runtime ended is left to its lease.
#[derive(Clone)]
pub struct Locks {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    cleanup_jobs: Arc<CleanupJobs>,
    /// Ends the tasks when the last handle, lock and guard are dropped without a shutdown.
    _stop: DropGuard,
}

/// How much state a [`Locks`] keeps at this moment; all zero when nothing is held or awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LockUsage {
    /// Pairs of a lock and an owner that are held, being acquired, or being cleaned up.
    pub entries: usize,
    /// Held locks in the renewal schedule.
    pub watched: usize,
    /// Channels with waiters.
    pub channels: usize,
}

impl Locks {
    /// Connect to Redis and start the background tasks. `server` is a URL, as [`Server::from_url`] reads
    /// it, or any [`Server`]; a [`redis::Client`] is one.
    ///
    /// # Cancellation
    /// Dropping the future ends the tasks and closes the connection.
    ///
    /// # Errors
    /// [`Error::Unavailable`] or [`Error::Rejected`] when Redis does not answer a PING within the
    /// command timeout; [`Error::Rejected`] when the address cannot be used.
    pub async fn connect(
        server: impl TryInto<Server, Error: Into<Error>>,
        config: LockConfig,
    ) -> Result<Self, Error> {
        let locks = Self::lazy(server, config)?;
        let pong = locks.shared().connection.ping().await;
        pong.map_err(|failure| failure.into_unavailable("connect"))?;
        Ok(locks)
    }

    /// Start the background tasks without waiting for Redis: the first operation connects.
    ///
    /// # Errors
    /// [`Error::Rejected`] when the address cannot be used, or when it is called outside a tokio runtime.
    pub fn lazy(
        server: impl TryInto<Server, Error: Into<Error>>,
        config: LockConfig,
    ) -> Result<Self, Error> {
        let server = server.try_into().map_err(Into::into)?;
        if Handle::try_current().is_err() {
            let cause = "there is no tokio runtime".into();
            return Err(Error::Rejected {
                operation: "connect",
                cause,
            });
        }
        let config = config.clamped();
        let connection = CommandConnection::lazy(server, &config)?;
        let (cleanup, cleanup_jobs) = CleanupQueue::new();
        let shared = Arc::new(Shared::new(config, connection, cleanup));
        let tasks = Mutex::new(start(&shared, &cleanup_jobs));
        let _stop = shared.stop.clone().drop_guard();
        Ok(Self {
            inner: Arc::new(Inner {
                shared,
                tasks,
                cleanup_jobs,
                _stop,
            }),
        })
    }

    /// A new owner. Different owners exclude each other, also within this process.
    pub fn owner(&self) -> Owner {
        self.shared().owner()
    }

    /// How much state is kept now: for metrics and for tests.
    pub fn usage(&self) -> LockUsage {
        let shared = self.shared();
        LockUsage {
            entries: shared.registry.len(),
            watched: shared.renewals.len(),
            channels: shared.wakeups.len(),
        }
    }

    /// Statistics by kind of lock, for metrics.
    pub fn stats(&self) -> Vec<LockStats> {
        self.shared().counters.read()
    }

    /// How often the server has refused the Redis user a channel.
    pub fn refusals(&self) -> ChannelRefusals {
        self.shared().connection.refusals.read()
    }

    /// End all waiting calls with [`Error::Closed`], stop renewing and subscribing, finish the clean-ups
    /// under way for up to two command timeouts, and wait until the background tasks have ended. Locks
    /// that are still held are not released: their guards can still do so, else their leases run out.
    /// New acquires fail with [`Error::Closed`].
    ///
    /// # Cancellation
    /// When the future is dropped, waiting calls end and new ones fail all the same; the background
    /// tasks end at the next call, or with the last handle.
    pub async fn shutdown(&self) {
        let shared = self.shared();
        shared.closing.cancel();
        // Waiters leave their queues by clean-ups, which the tasks still have to finish.
        shared.waiters.close();
        if tokio::time::timeout(shared.connection.timeout(), shared.waiters.wait())
            .await
            .is_err()
        {
            tracing::debug!(
                left = shared.waiters.len(),
                "waiting calls that are not polled"
            );
        }
        shared.stop.cancel();
        let tasks = std::mem::take(&mut *self.tasks());
        for task in tasks {
            if let Err(error) = task.await {
                tracing::error!(%error, "a background task of the locks ended with an error");
            }
        }
    }

    /// Start the background tasks again if the runtime on which they ran has ended.
    pub(crate) fn ensure_running(&self) {
        let shared = self.shared();
        let mut tasks = self.tasks();
        // As long as their runtime lives, the tasks end only after `stop`.
        if tasks.iter().any(JoinHandle::is_finished)
            && !shared.stop.is_cancelled()
            && Handle::try_current().is_ok()
        {
            tracing::debug!("the runtime of the locks' tasks has ended; they go on with this one");
            *tasks = start(shared, &self.inner.cleanup_jobs);
        }
    }

    fn tasks(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        let tasks = self.inner.tasks.lock();
        tasks.unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection for a command about the lock of this name, if the name can be used.
    pub(crate) fn connection(&self, name: &Name) -> Result<&CommandConnection, Error> {
        name.check()?;
        Ok(&self.shared().connection)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }
}

/// Start the background tasks on the caller's runtime.
fn start(shared: &Arc<Shared>, cleanup_jobs: &Arc<CleanupJobs>) -> Vec<JoinHandle<()>> {
    let cleanup_jobs = cleanup_jobs.clone();
    vec![
        supervise("lock watchdog", shared, watchdog::run),
        supervise("lock subscriber", shared, subscriber::run),
        supervise("lock cleanup", shared, move |shared| {
            let timeout = shared.config.command_timeout * 2;
            cleanup_queue::run(cleanup_jobs.clone(), shared.stop.clone(), timeout)
        }),
    ]
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks")
            .field("client", &self.shared().client_id)
            .finish_non_exhaustive()
    }
}
