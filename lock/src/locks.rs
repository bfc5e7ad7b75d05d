//! The locks of one process on one Redis: what is shared between all of them, and the background
//! tasks. The single place where the parts of this module are put together.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

use super::conn::{Connection, Failure, Server};
use super::hold::Hold;
use super::janitor::{self, Janitor};
use super::name::LockName;
use super::registry::Registry;
use super::settle::settle;
use super::stats::Counters;
use super::supervise::supervise;
use super::wake::Topics;
use super::watchdog::{self, OnLoss, Timetable};
use super::{
    Error, FairLock, FencedLock, Lock, LockConfig, LostReason, Owner, ReadWriteLock, ReentrantLock,
    SetNxLock, Stats, listener,
};

/// How many clean-ups may talk to Redis at once, so that an outage is not followed by a stampede.
const CLEANUPS_AT_ONCE: usize = 64;

/// The locks of one process on one Redis. Cheap to clone; one per process and Redis is enough.
#[derive(Clone)]
pub struct Locks {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    /// Ends the tasks when the last handle, lock and guard are gone without a shutdown.
    _stop: DropGuard,
}

/// What operations, guards and background tasks share. It does not refer to the tasks.
pub(super) struct Shared {
    pub(super) config: LockConfig,
    pub(super) connection: Arc<Connection>,
    pub(super) registry: Arc<Registry>,
    pub(super) topics: Arc<Topics>,
    pub(super) timetable: Arc<Timetable>,
    pub(super) janitor: Janitor,
    pub(super) counters: Arc<Counters>,
    client_id: Uuid,
    next_id: AtomicU64,
    cleanups: Semaphore,
    stop: CancellationToken,
}

/// How much a process's locks keep at this moment; all zero when nothing is held or awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LockUsage {
    /// Pairs of a lock and an owner that are held, being taken, or being cleaned up.
    pub entries: usize,
    /// Held locks that the watchdog looks after.
    pub watched: usize,
    /// Channels with waiters.
    pub channels: usize,
}

impl Locks {
    /// Connect to Redis and start the background tasks. A [`redis::Client`] is one server; see
    /// [`Server`] for a cluster and for Sentinel.
    ///
    /// # Errors
    /// [`Error::Unavailable`] or [`Error::Rejected`] when Redis does not answer a PING in time.
    pub async fn connect(server: impl Into<Server>, config: LockConfig) -> Result<Self, Error> {
        let locks = Self::lazy(server, config)?;
        locks.shared().connection.ping().await.map_err(|f| f.unavailable("connect"))?;
        Ok(locks)
    }

    /// Start the background tasks without waiting for Redis: the first operation connects.
    ///
    /// # Errors
    /// [`Error::Rejected`] when the address cannot be used; [`Error::Unavailable`] when it is called
    /// outside a tokio runtime.
    pub fn lazy(server: impl Into<Server>, config: LockConfig) -> Result<Self, Error> {
        if Handle::try_current().is_err() {
            let cause = "there is no tokio runtime".to_owned();
            return Err(Error::Unavailable { operation: "connect", cause });
        }
        let config = config.checked();
        let unusable =
            |error: redis::RedisError| Failure::Rejected(error.to_string()).outcome("connect");
        let connection = Connection::lazy(server.into(), &config).map_err(unusable)?;
        let (janitor, queue) = Janitor::new();
        let stop = CancellationToken::new();
        let shared = Arc::new(Shared {
            connection: Arc::new(connection),
            registry: Arc::default(),
            topics: Arc::default(),
            timetable: Arc::default(),
            janitor,
            counters: Arc::default(),
            client_id: Uuid::new_v4(),
            next_id: AtomicU64::new(1),
            cleanups: Semaphore::new(CLEANUPS_AT_ONCE),
            stop: stop.clone(),
            config: config.clone(),
        });

        let renewing = supervise("lock watchdog", {
            let (shared, stop) = (shared.clone(), stop.clone());
            let on_loss: OnLoss = Arc::new({
                let shared = shared.clone();
                move |hold, reason| shared.lose(hold, reason)
            });
            move || {
                let (timetable, connection) = (shared.timetable.clone(), shared.connection.clone());
                let counters = shared.counters.clone();
                watchdog::run(timetable, connection, counters, on_loss.clone(), stop.clone())
            }
        });
        let listening = supervise("lock listener", {
            let (topics, stop, config) = (shared.topics.clone(), stop.clone(), config.clone());
            let backend = shared.connection.backend().clone();
            move || listener::run(topics.clone(), backend.clone(), config.clone(), stop.clone())
        });
        let cleaning = supervise("lock janitor", {
            let (stop, patience) = (stop.clone(), config.command_timeout * 2);
            move || janitor::run(queue.clone(), stop.clone(), patience)
        });

        let tasks = Mutex::new(vec![renewing, listening, cleaning]);
        Ok(Self { inner: Arc::new(Inner { shared, tasks, _stop: stop.drop_guard() }) })
    }

    /// A new owner. Different owners exclude each other, also within this process.
    pub fn owner(&self) -> Owner {
        Owner::new(self.shared().client_id, self.shared().id())
    }

    /// The reentrant lock of this name, shared with every other client of the Redis, Redisson's
    /// included. Makes no call.
    ///
    /// # Errors
    /// [`Error::InvalidName`] for a name that could not work on a Redis Cluster: empty, or with
    /// braces that form no hash tag (`a{b`, `a}b`, `a{}b`).
    pub fn reentrant(&self, name: &str) -> Result<ReentrantLock, Error> {
        Ok(Lock::new(self.clone(), LockName::new(name)?))
    }

    /// The fenced lock of this name: a reentrant lock whose guards carry a number that rises from
    /// holder to holder. Makes no call.
    ///
    /// # Errors
    /// As [`reentrant`](Self::reentrant).
    pub fn fenced(&self, name: &str) -> Result<FencedLock, Error> {
        Ok(Lock::new(self.clone(), LockName::new(name)?))
    }

    /// The fair lock of this name: first come, first served. Makes no call.
    ///
    /// # Errors
    /// As [`reentrant`](Self::reentrant).
    pub fn fair(&self, name: &str) -> Result<FairLock, Error> {
        Ok(Lock::new(self.clone(), LockName::new(name)?))
    }

    /// The read-write lock of this name: many readers or one writer. Makes no call.
    ///
    /// # Errors
    /// As [`reentrant`](Self::reentrant).
    pub fn read_write(&self, name: &str) -> Result<ReadWriteLock, Error> {
        Ok(ReadWriteLock::new(self.clone(), LockName::new(name)?))
    }

    /// The simple lock on this key: `SET key token NX PX lease`, no renewal, no waiting.
    pub fn setnx(&self, key: &str, lease: Duration) -> SetNxLock {
        SetNxLock::new(self.clone(), key, super::config::clamp_lease(lease))
    }

    /// What is held and awaited now: for metrics and for tests.
    pub fn usage(&self) -> LockUsage {
        let shared = self.shared();
        LockUsage {
            entries: shared.registry.len(),
            watched: shared.timetable.len(),
            channels: shared.topics.len(),
        }
    }

    /// What was done so far, by the kind of lock: for metrics. Without the locks within the process, which
    /// [`ProcessLocks::stats`](super::ProcessLocks::stats) tells.
    pub fn stats(&self) -> Vec<Stats> {
        self.shared().counters.read()
    }

    /// Stop renewing and listening, finish the clean-ups under way for up to two command timeouts,
    /// and wait until the background tasks have ended. Locks that are still held are not given
    /// back: their guards can still be released, else their leases run out. New acquires fail with
    /// [`Error::Closed`].
    pub async fn shutdown(&self) {
        self.shared().stop.cancel();
        let tasks = {
            let mut tasks = self.inner.tasks.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *tasks)
        };
        for task in tasks {
            if let Err(error) = task.await {
                tracing::error!(fault = %error, "a lock task ended badly");
            }
        }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks").field("client", &self.shared().client_id).finish_non_exhaustive()
    }
}

impl Shared {
    /// An id that this process has not used yet.
    pub(super) fn id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// A token that nobody else uses, for locks without a reentrant owner.
    pub(super) fn token(&self) -> String {
        format!("{}-{}", self.client_id.simple(), self.id())
    }

    /// # Errors
    /// [`Error::Closed`] after shutdown.
    pub(super) fn open(&self) -> Result<(), Error> {
        if self.stop.is_cancelled() { Err(Error::Closed) } else { Ok(()) }
    }

    /// A place among the clean-ups that may talk to Redis.
    pub(super) async fn cleanup_permit(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed, so there always is one in the end.
        self.cleanups.acquire().await.ok()
    }

    /// A hold turned out to be lost: tell its guards, and forget it.
    pub(super) fn lose(self: &Arc<Self>, hold: &Arc<Hold>, reason: LostReason) {
        if !hold.lose(reason) {
            return;
        }
        self.timetable.strike(hold);
        let counters = self.counters.of(hold.claim.kind);
        counters.lost(reason);
        counters.ended(hold.since.elapsed());
        let (lock, owner) = (&hold.claim.name, hold.claim.owner);
        tracing::warn!(?lock, %owner, %reason, "lock lost");
        if reason == LostReason::Unreachable {
            // A renewal whose answer never came may have filled the lease once more.
            let until = Instant::now() + self.config.lease.max(self.config.command_timeout);
            self.janitor.run(settle(self.clone(), hold.claim.clone(), until));
        }
    }
}
