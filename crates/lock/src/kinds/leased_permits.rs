//! Acquired permits of a leased semaphore: extended, renewed, released.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::cleanup::armed::{Armed, Release};
use crate::cleanup::queue::CleanupQueue;
use crate::cleanup::reconcile::{Attempt, release_until};
use crate::commands::leased_semaphore::PermitIds;
use crate::commands::semaphore::SemaphoreName;
use crate::config::{LockConfig, clamp_lease};
use crate::connection::failure::Failure;
use crate::error::{Error, Lost, LostReason};
use crate::holding::guard::unless_lost;
use crate::locks::Locks;

/// Permits of a [`LeasedSemaphore`](crate::LeasedSemaphore) that were acquired together and have one
/// lease; dropping them releases them in the background.
#[must_use = "dropping the permits releases them"]
pub struct LeasedPermits {
    held: Armed<Held>,
    renewal: Option<Renewal>,
}

/// Ends the renewal when it is dropped.
struct Renewal {
    lease: Duration,
    _end: DropGuard,
}

#[derive(Clone)]
pub(crate) struct Held {
    locks: Locks,
    pub(crate) name: SemaphoreName,
    ids: PermitIds,
    since: Instant,
    lease: Arc<Lease>,
}

/// Until when the server keeps permits at least.
struct Lease {
    ends: Mutex<Instant>,
    changed: Notify,
}

impl Lease {
    fn new(ends: Instant) -> Arc<Self> {
        Arc::new(Self { ends: Mutex::new(ends), changed: Notify::new() })
    }

    fn ends(&self) -> MutexGuard<'_, Instant> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, ends: Instant) {
        *self.ends() = ends;
        self.changed.notify_waiters();
    }

    fn left(&self) -> Duration {
        self.ends().saturating_duration_since(Instant::now())
    }
}

impl Held {
    /// The permits of an acquire that is about to be sent.
    pub(crate) fn new(
        locks: Locks,
        name: SemaphoreName,
        ids: PermitIds,
        sent: Instant,
        lease: Duration,
    ) -> Self {
        Self { locks, name, ids, since: Instant::now(), lease: Lease::new(sent + lease) }
    }

    pub(crate) fn valid_for(&self) -> Duration {
        self.lease.left()
    }

    /// Set the lease; see [`LeasedPermits::extend`].
    async fn extend(&self, lease: Duration) -> Result<(), Error> {
        let sent = Instant::now();
        if self.ids.count() == 0 {
            self.lease.set(sent + lease);
            return Ok(());
        }
        // Whether or not the command is answered, a shorter lease may have taken effect.
        if lease < self.valid_for() {
            self.lease.set(sent + lease);
        }
        let connection = &self.locks.shared().connection;
        match connection.permit_extend(&self.name, self.ids, lease).await {
            Ok(true) => {
                self.lease.set(sent + lease);
                Ok(())
            }
            Ok(false) => {
                self.lease.set(sent);
                Err(Error::Lost(LostReason::Expired))
            }
            Err(failure) => Err(failure.into_error("extend")),
        }
    }

    /// Extend the lease every third of it, until it is lost.
    async fn renew(self, lease: Duration) {
        let counters = &self.locks.shared().counters.leased_semaphore;
        let mut pause = LockConfig::renewal_interval(lease);
        let reason = loop {
            if self.valid_for().is_zero() {
                break LostReason::Unreachable;
            }
            sleep(pause).await;
            match self.extend(lease).await {
                Ok(()) => {
                    counters.renewed();
                    pause = LockConfig::renewal_interval(lease);
                }
                Err(Error::Lost(reason)) => break reason,
                Err(error) => {
                    counters.renewal_failed();
                    tracing::warn!(semaphore = ?self.name, %error, "permits not renewed; retrying");
                    pause = lease / 30;
                }
            }
        };
        counters.hold_lost(reason);
        tracing::warn!(semaphore = ?self.name, %reason, "permits lost");
    }
}

impl Release for Held {
    fn cleanup(&self) -> &CleanupQueue {
        &self.locks.shared().cleanup
    }

    fn name(&self) -> &str {
        self.name.key()
    }

    async fn release(self) -> Result<(), Error> {
        release(self).await
    }
}

impl LeasedPermits {
    /// The server has confirmed the acquire; with a lease, the permits are renewed.
    pub(crate) fn acquired(held: Held, renewed: Option<Duration>) -> Self {
        held.locks.shared().counters.leased_semaphore.hold_started();
        let mut permits = Self { held: Armed::new(held), renewal: None };
        if permits.count() == 0 {
            permits.end();
        } else if let Some(lease) = renewed {
            permits.renew(lease);
        }
        permits
    }

    /// Nothing is held here any more.
    fn end(&mut self) {
        self.renewal = None;
        self.held.disarm();
        let counters = &self.held.locks.shared().counters.leased_semaphore;
        counters.hold_ended(self.held.since.elapsed());
    }

    /// Renew the permits in the background, in place of an earlier renewal.
    fn renew(&mut self, lease: Duration) {
        let (held, end) = ((*self.held).clone(), CancellationToken::new());
        let shared = held.locks.shared().clone();
        let (ended, closing) = (end.clone(), shared.closing.clone());
        shared.cleanup.spawn(async move {
            tokio::select! {
                () = held.renew(lease) => {}
                () = ended.cancelled() => {}
                () = closing.cancelled() => {}
            }
        });
        self.renewal = Some(Renewal { lease, _end: end.drop_guard() });
    }

    /// Release them and notify waiters. One command.
    ///
    /// # Cancellation
    /// Once polled, it is finished in the background even if the future is dropped.
    ///
    /// # Errors
    /// [`Error::Lost`] when their lease had ended, by the server's clock: another holder may have had them
    /// since. [`Error::Unavailable`] or [`Error::Unknown`] when Redis was not reached or did not
    /// answer: the release is repeated in the background until the lease has ended.
    pub async fn release(self) -> Result<(), Error> {
        drop(self.renewal);
        self.held.release().await
    }

    /// Set their lease (at least 1 ms), counted from now; that of all permits or of none. One command.
    /// A [renewal](crate::LeasedSemaphore::with_renewal) goes on with the lease of the semaphore.
    ///
    /// # Cancellation
    /// When the future is dropped, the lease may or may not have been set:
    /// [`valid_for`](Self::valid_for) then tells the shorter of both.
    ///
    /// # Errors
    /// [`Error::Lost`] when their lease has ended. [`Error::Unavailable`] or [`Error::Unknown`] when
    /// Redis was not reached or did not answer: it may or may not be extended, and
    /// [`valid_for`](Self::valid_for) tells what is certain.
    pub async fn extend(&mut self, lease: Duration) -> Result<(), Error> {
        self.held.extend(clamp_lease(lease)).await
    }

    /// Split so many of them off, to be released and extended by themselves; `None` if there are fewer.
    /// Sends nothing.
    pub fn split(&mut self, permits: u32) -> Option<Self> {
        let ids = self.held.ids.split(permits)?;
        let lease = Lease::new(*self.held.lease.ends());
        let part = Held { ids, lease, since: Instant::now(), ..(*self.held).clone() };
        let renewed = self.renewal.as_ref().map(|renewal| renewal.lease);
        if self.count() == 0 {
            self.end();
        } else if let Some(lease) = renewed {
            self.renew(lease);
        }
        Some(Self::acquired(part, renewed))
    }

    /// How long from now they are held for certain, by this machine's monotonic clock, counted from
    /// before the last confirmed command was sent.
    pub fn valid_for(&self) -> Duration {
        self.held.valid_for()
    }

    /// Wait until the lease has ended. Independent of the permits; meaningless once they are released.
    pub fn lost(&self) -> impl Future<Output = LostReason> + Send + use<> {
        let lease = self.held.lease.clone();
        async move {
            loop {
                let changed = lease.changed.notified();
                let left = lease.left();
                if left.is_zero() {
                    return LostReason::Expired;
                }
                tokio::select! {
                    () = changed => {}
                    () = sleep(left) => {}
                }
            }
        }
    }

    /// Run `work` as long as the permits are held: its output, or [`Lost`] as soon as the lease has ended;
    /// `work` is dropped then. The permits are not released.
    ///
    /// # Cancellation
    /// Dropping the future drops `work`.
    ///
    /// # Errors
    /// [`Lost`].
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Lost> {
        unless_lost(self.lost(), work).await
    }

    /// The number of permits.
    pub fn count(&self) -> u32 {
        self.held.ids.count()
    }

    /// The id of each permit as Redisson shows it: 32 hexadecimal digits.
    pub fn ids(&self) -> impl Iterator<Item = String> {
        self.held.ids.iter().map(|id| id.simple().to_string())
    }
}

impl fmt::Debug for LeasedPermits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeasedPermits")
            .field("name", &self.held.name)
            .field("ids", &self.held.ids)
            .finish_non_exhaustive()
    }
}

async fn release(held: Held) -> Result<(), Error> {
    let shared = held.locks.shared().clone();
    shared.counters.leased_semaphore.hold_ended(held.since.elapsed());
    match shared.connection.permit_release(&held.name, held.ids).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::Lost(LostReason::Expired)),
        Err(failure) => {
            if !matches!(failure, Failure::Rejected(_)) {
                let ends = *held.lease.ends();
                shared.cleanup.spawn(reconcile(held, ends));
            }
            Err(failure.into_error("release"))
        }
    }
}

/// Repeat the release until Redis has answered twice that the permits are not acquired, or until the
/// lease must have ended.
pub(crate) async fn reconcile(held: Held, ends: Instant) {
    let shared = held.locks.shared();
    release_until(shared, held.name.key(), ends, 2, async || {
        match shared.connection.permit_release(&held.name, held.ids).await {
            Ok(true) | Err(Failure::Rejected(_)) => Attempt::Done,
            Ok(false) => Attempt::NotHeld,
            Err(_) => Attempt::Failed,
        }
    })
    .await;
}
