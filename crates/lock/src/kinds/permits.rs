//! Acquired permits of a semaphore, of either kind; and how those without a lease are released once, even
//! if replies are lost.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use tokio::time::Instant;

use crate::cleanup::armed::{Armed, Release};
use crate::cleanup::token::{self, Token};
use crate::commands::Try;
use crate::commands::semaphore::{ACQUIRE_RECORD_TTL, RELEASE_RECORD_TTL, ReleaseIf};
use crate::connection::command_connection::CommandConnection;
use crate::connection::failure::Failure;
use crate::error::Error;
use crate::locks::Locks;
use crate::name::Name;
use crate::stats::KindCounters;

/// Permits of a [`Semaphore`](crate::Semaphore) that were acquired together. Those of a
/// [`LeasedSemaphore`](crate::LeasedSemaphore) have one lease, and more calls.
///
/// [`release`](Self::release) releases them and reports the outcome. Dropping them releases them in
/// the background, without blocking, and also outside a runtime.
#[must_use = "dropping the permits releases them"]
pub struct Permits<K: SemaphoreKind = Plain>(pub(super) Armed<K::Held>);

/// A kind of semaphore: [`Plain`] or [`Leased`](crate::Leased).
pub trait SemaphoreKind: sealed::Sealed {}

/// Permits without a lease: Redisson's `RSemaphore`.
#[derive(Debug, Clone, Copy)]
pub struct Plain;

impl SemaphoreKind for Plain {}

pub(super) mod sealed {
    use super::*;

    /// What the kinds do differently.
    #[expect(
        private_interfaces,
        private_bounds,
        reason = "called within this crate only"
    )]
    pub trait Sealed: fmt::Debug + Clone + Send + Sync + Unpin + 'static {
        type Held: HeldPermits;

        /// The permits of an acquire that is about to be sent.
        fn request(&self, locks: Locks, name: Name, permits: u32) -> Self::Held;

        fn available(
            connection: &CommandConnection,
            name: &Name,
        ) -> impl Future<Output = Result<i64, Failure>> + Send;
    }
}

/// Permits as they are requested, held and released.
pub(crate) trait HeldPermits: Token + Unpin {
    fn count(&self) -> u32;

    /// Split so many of them off; `None` if there are fewer.
    fn split(&mut self, permits: u32) -> Option<Self>;

    fn send_acquire(&self) -> impl Future<Output = Result<Try<()>, Failure>> + Send;

    /// These permits are held now.
    fn begin(&mut self) {}

    /// Nothing is held any more.
    fn end(&self) {}
}

impl<K: SemaphoreKind> Permits<K> {
    /// The server has confirmed the acquire.
    pub(crate) fn acquired(held: K::Held) -> Self {
        K::Held::counters(held.locks()).holds.add();
        let mut permits = Self(Armed::new(held));
        if permits.count() == 0 {
            permits.end();
        } else {
            permits.0.held.begin();
        }
        permits
    }

    /// Nothing is held here any more.
    fn end(&mut self) {
        self.0.disarm();
        self.0.held.end();
        token::count_end(&self.0.held);
    }

    /// The number of permits.
    pub fn count(&self) -> u32 {
        self.0.held.count()
    }

    /// Release them and notify waiters. One command.
    ///
    /// # Cancellation
    /// Once polled, it is finished in the background even if the future is dropped.
    ///
    /// # Errors
    /// [`Error::Lost`] when the server does not know of them, and nothing was changed: the semaphore was
    /// deleted, its data lost, or their lease had ended by the server's clock, so that another holder
    /// may have had them since. [`Error::Unavailable`] or [`Error::Unknown`] when Redis was not reached
    /// or did not answer: it is repeated in the background until the lease has ended; without a lease
    /// until nine minutes after the acquire or, if that is later, for half a minute.
    pub async fn release(self) -> Result<(), Error> {
        self.0.release().await
    }

    /// Split so many of them off, to be released by themselves; `None` if there are fewer. Sends
    /// nothing. What is split off without a lease is released like permits that were held for longer
    /// than nine minutes: see [`Semaphore`](crate::Semaphore).
    pub fn split(&mut self, permits: u32) -> Option<Self> {
        let part = self.0.held.split(permits)?;
        if self.count() == 0 {
            self.end();
        } else {
            self.0.held.begin();
        }
        Some(Self::acquired(part))
    }
}

impl Permits {
    /// Keep them acquired without a guard: for permits that another process releases, with
    /// [`Semaphore::add_permits`](crate::Semaphore::add_permits).
    pub fn forget(mut self) {
        self.end();
    }
}

impl<K: SemaphoreKind> fmt::Debug for Permits<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permits")
            .field("name", &self.0.held.name())
            .field("count", &self.count())
            .finish_non_exhaustive()
    }
}

/// Permits without a lease.
#[derive(Clone)]
pub struct Held {
    locks: Locks,
    name: Name,
    /// Identifies the record of the acquire.
    token: Arc<str>,
    permits: u32,
    since: Instant,
    condition: ReleaseIf,
    /// Until when the record that the condition goes by exists for certain.
    recorded_until: Instant,
}

#[expect(private_interfaces, reason = "as the trait's")]
impl sealed::Sealed for Plain {
    type Held = Held;

    fn request(&self, locks: Locks, name: Name, permits: u32) -> Held {
        let (token, since) = (locks.shared().token().into(), Instant::now());
        // A tenth less, as an allowance for clocks that run at different rates.
        let recorded_until = since + ACQUIRE_RECORD_TTL - ACQUIRE_RECORD_TTL / 10;
        let condition = ReleaseIf::Acquired;
        Held {
            locks,
            name,
            token,
            permits,
            since,
            condition,
            recorded_until,
        }
    }

    async fn available(c: &CommandConnection, name: &Name) -> Result<i64, Failure> {
        Ok(c.semaphore_available(name).await?.unwrap_or(0))
    }
}

impl Release for Held {
    fn locks(&self) -> &Locks {
        &self.locks
    }

    fn name(&self) -> &str {
        self.name.key()
    }

    async fn release(mut self) -> Result<(), Error> {
        // Chosen once: the record of a first sending with one condition does not bind the other.
        if Instant::now() >= self.recorded_until {
            self.condition = ReleaseIf::Exists;
            // Well before the record of the release can expire.
            self.recorded_until = Instant::now() + RELEASE_RECORD_TTL / 2;
        }
        token::release(self).await
    }
}

impl Token for Held {
    /// The record makes sure that an acquire that arrives later acquires nothing.
    const DENIALS: u32 = 1;

    fn counters(locks: &Locks) -> &KindCounters {
        &locks.shared().counters.semaphore
    }

    fn since(&self) -> Instant {
        self.since
    }

    fn ends(&self) -> Instant {
        self.recorded_until
    }

    async fn send_release(&self) -> Result<bool, Failure> {
        let connection = &self.locks.shared().connection;
        let permits = self.permits.into();
        connection
            .semaphore_release(&self.name, &self.token, permits, self.condition)
            .await
    }
}

impl HeldPermits for Held {
    fn count(&self) -> u32 {
        self.permits
    }

    fn split(&mut self, permits: u32) -> Option<Self> {
        self.permits = self.permits.checked_sub(permits)?;
        let (token, since) = (self.locks.shared().token().into(), Instant::now());
        Some(Self {
            token,
            permits,
            since,
            recorded_until: since,
            ..self.clone()
        })
    }

    async fn send_acquire(&self) -> Result<Try<()>, Failure> {
        let connection = &self.locks.shared().connection;
        let acquired = connection
            .semaphore_acquire(&self.name, &self.token, self.permits)
            .await?;
        Ok(if acquired {
            Try::Acquired(())
        } else {
            Try::Refused(-1)
        })
    }
}
