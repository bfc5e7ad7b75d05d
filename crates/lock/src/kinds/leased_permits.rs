//! Permits with a lease: extended, renewed, released.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::cleanup::armed::Release;
use crate::cleanup::token::{self, Token};
use crate::commands::Try;
use crate::commands::leased_semaphore::PermitIds;
use crate::config::{LockConfig, clamp_lease};
use crate::connection::command_connection::CommandConnection;
use crate::connection::failure::Failure;
use crate::error::{Error, Lost, LostReason};
use crate::holding::guard::unless_lost;
use crate::kinds::permits::{HeldPermits, Permits, SemaphoreKind, sealed};
use crate::locks::Locks;
use crate::name::Name;
use crate::stats::KindCounters;

/// Permits with a lease, so that those of a crashed holder are freed: Redisson's
/// `RPermitExpirableSemaphore`.
#[derive(Debug, Clone)]
pub struct Leased {
    pub(super) lease: Duration,
    pub(super) renewed: bool,
}

impl SemaphoreKind for Leased {}

/// Permits of a [`LeasedSemaphore`](crate::LeasedSemaphore).
pub type LeasedPermits = Permits<Leased>;

/// Permits with a lease.
#[derive(Clone)]
pub struct Held {
    locks: Locks,
    name: Name,
    ids: PermitIds,
    since: Instant,
    kind: Leased,
    lease: Arc<Lease>,
    /// Ends the renewal.
    end: CancellationToken,
}

struct Lease {
    /// Until when the server keeps the permits at least.
    ends: watch::Sender<Instant>,
    /// Held while a new lease is sent: the server and this process see the same one as the last.
    extending: tokio::sync::Mutex<()>,
}

impl Lease {
    fn new(ends: Instant) -> Arc<Self> {
        Arc::new(Self {
            ends: watch::Sender::new(ends),
            extending: Default::default(),
        })
    }

    fn set(&self, ends: Instant) {
        self.ends.send_replace(ends);
    }

    fn left(&self) -> Duration {
        self.ends.borrow().saturating_duration_since(Instant::now())
    }
}

#[expect(private_interfaces, reason = "as the trait's")]
impl sealed::Sealed for Leased {
    type Held = Held;

    fn request(&self, locks: Locks, name: Name, permits: u32) -> Held {
        let (since, end) = (Instant::now(), CancellationToken::new());
        let (ids, lease) = (PermitIds::new(permits), Lease::new(since + self.lease));
        Held {
            locks,
            name,
            ids,
            since,
            kind: self.clone(),
            lease,
            end,
        }
    }

    async fn available(c: &CommandConnection, name: &Name) -> Result<i64, Failure> {
        c.permits_available(name).await
    }
}

impl Release for Held {
    fn locks(&self) -> &Locks {
        &self.locks
    }

    fn name(&self) -> &str {
        self.name.key()
    }

    async fn release(self) -> Result<(), Error> {
        self.end();
        token::release(self).await
    }
}

impl Token for Held {
    const DENIALS: u32 = 2;

    fn counters(locks: &Locks) -> &KindCounters {
        &locks.shared().counters.leased_semaphore
    }

    fn since(&self) -> Instant {
        self.since
    }

    fn ends(&self) -> Instant {
        *self.lease.ends.borrow()
    }

    fn unanswered(&mut self) {
        self.lease.set(Instant::now() + self.kind.lease);
    }

    async fn send_release(&self) -> Result<bool, Failure> {
        self.locks
            .shared()
            .connection
            .permit_release(&self.name, self.ids)
            .await
    }
}

impl HeldPermits for Held {
    fn count(&self) -> u32 {
        self.ids.count()
    }

    fn split(&mut self, permits: u32) -> Option<Self> {
        let ids = self.ids.split(permits)?;
        let (lease, end) = (Lease::new(self.ends()), CancellationToken::new());
        Some(Self {
            ids,
            since: Instant::now(),
            lease,
            end,
            ..self.clone()
        })
    }

    async fn send_acquire(&self) -> Result<Try<()>, Failure> {
        let connection = &self.locks.shared().connection;
        let reply = connection
            .permit_acquire(&self.name, self.ids, self.kind.lease)
            .await?;
        if matches!(reply, Try::Acquired(())) && self.lease.left().is_zero() {
            // This future was not polled for so long that the lease is over before it began.
            return Err(Failure::Unknown(
                "the answer was read after the lease had ended".into(),
            ));
        }
        Ok(reply)
    }

    /// Renew them in the background, in place of an earlier renewal.
    fn begin(&mut self) {
        self.end.cancel();
        if !self.kind.renewed {
            return;
        }
        let shared = self.locks.shared().clone();
        self.end = shared.closing.child_token();
        let (held, end) = (self.clone(), self.end.clone());
        shared.cleanup.spawn(async move {
            tokio::select! {
                () = held.renew() => {}
                () = end.cancelled() => {}
            }
        });
    }

    fn end(&self) {
        self.end.cancel();
    }
}

impl Held {
    /// Set the lease; see [`LeasedPermits::extend`].
    async fn extend(&self, lease: Duration) -> Result<(), Error> {
        let _turn = self.lease.extending.lock().await;
        let sent = Instant::now();
        if self.ids.count() == 0 {
            self.lease.set(sent + lease);
            return Ok(());
        }
        // Whether or not the command is answered, a shorter lease may have taken effect.
        if lease < self.lease.left() {
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
    async fn renew(&self) {
        let (lease, counters) = (self.kind.lease, Self::counters(&self.locks));
        let interval = LockConfig::renewal_interval(lease);
        // Of permits that were split off, a part of the lease is over.
        let mut pause = self
            .lease
            .left()
            .saturating_sub(lease - interval)
            .min(interval);
        let reason = loop {
            if self.lease.left().is_zero() {
                break LostReason::Unreachable;
            }
            sleep(pause).await;
            match self.extend(lease).await {
                Ok(()) => {
                    counters.renewed.add();
                    pause = interval;
                }
                Err(Error::Lost(reason)) => break reason,
                Err(error) => {
                    counters.renewals_failed.add();
                    tracing::warn!(semaphore = ?self.name, %error, "permits not renewed; retrying");
                    pause = lease / 30;
                }
            }
        };
        counters.hold_lost(reason);
        tracing::warn!(semaphore = ?self.name, %reason, "permits lost");
    }
}

impl LeasedPermits {
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
        self.0.held.extend(clamp_lease(lease)).await
    }

    /// How long from now they are held for certain, by this machine's monotonic clock, counted from
    /// before the last confirmed command was sent.
    pub fn valid_for(&self) -> Duration {
        self.0.held.lease.left()
    }

    /// Wait until the lease has ended. Independent of the permits; meaningless once they are released.
    pub fn lost(&self) -> impl Future<Output = LostReason> + Send + use<> {
        let mut lease = self.0.held.lease.ends.subscribe();
        async move {
            loop {
                let ends = *lease.borrow_and_update();
                if Instant::now() >= ends {
                    return LostReason::Expired;
                }
                tokio::select! {
                    Ok(()) = lease.changed() => {}
                    () = sleep_until(ends) => {}
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

    /// The id of each permit as Redisson shows it: 32 hexadecimal digits.
    pub fn ids(&self) -> impl Iterator<Item = String> {
        self.0.held.ids.iter().map(|id| id.simple().to_string())
    }
}
