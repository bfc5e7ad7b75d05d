//! The semaphore whose permits have ids and leases, so that those of a crashed holder come back.
//! Its shape is that of Redisson's `RPermitExpirableSemaphore`.

use std::fmt;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::conn::Failure;
use super::limit::ends;
use super::line::{Try, wait};
use super::locks::Locks;
use super::semaphore_calls::{Give, SemaphoreName};
use super::{Error, LostReason};

/// A semaphore whose permits expire, shared with Redisson's clients.
///
/// On the wire (Redisson 3.17 to 4.7) it is a string with the number of free permits, as for
/// [`Semaphore`](super::Semaphore), and beside it `{name}:timeout`, a sorted set: the 16-byte id of
/// each permit that is out, by the time at which it expires. Whoever comes next collects what has
/// expired. One permit is taken at a time.
///
/// The id makes every command count once, however often it is sent, and a permit that nobody gives
/// back is free again after its lease: nothing can be lost for longer, and nothing given twice. The
/// price is that of every lease: who outlives it is one too many. Look at
/// [`valid_for`](LeasedPermit::valid_for), and [`extend`](LeasedPermit::extend) it in time; no
/// watchdog does.
///
/// Leases run on the server's clock (Redis 5 or newer). Redisson's clients go by their own: one whose clock is fast
/// collects permits early, also ours.
///
/// [`LockConfig::replicas`](super::LockConfig::replicas) is not heeded: a failover may forget a
/// permit, and then somebody is one too many until its holder is done.
///
/// ```no_run
/// # async fn example(locks: redisson_lock::Locks) -> Result<(), redisson_lock::Error> {
/// use std::time::Duration;
///
/// let gate = locks.leased_semaphore("payment:gate", Duration::from_secs(30))?;
/// gate.try_set_permits(20).await?;
/// let permit = gate.acquire().await?;
/// // ... no more than twenty at once, even if some of them crashed ...
/// permit.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LeasedSemaphore {
    locks: Locks,
    name: SemaphoreName,
    lease: Duration,
}

/// A permit of a [`LeasedSemaphore`]; dropping it gives it back in the background.
#[must_use = "dropping the permit gives it back"]
pub struct LeasedPermit {
    held: Held,
    /// Whether dropping has something to give back.
    armed: bool,
}

#[derive(Clone)]
struct Held {
    locks: Locks,
    name: SemaphoreName,
    id: Uuid,
    /// Until when the server keeps it at least.
    ends: Instant,
}

impl Locks {
    /// The semaphore of this name whose permits last for `lease` (at least 1 ms). Makes no call.
    ///
    /// # Errors
    /// [`Error::InvalidName`] as for [`reentrant`](Self::reentrant).
    pub fn leased_semaphore(&self, name: &str, lease: Duration) -> Result<LeasedSemaphore, Error> {
        let (name, lease) = (SemaphoreName::new(name)?, super::config::clamp_lease(lease));
        Ok(LeasedSemaphore { locks: self.clone(), name, lease })
    }
}

impl LeasedSemaphore {
    /// Make the semaphore with so many permits; `false`, and nothing changes, if it exists.
    ///
    /// # Errors
    /// [`Error::Unavailable`] or [`Error::Rejected`] when Redis cannot be asked or refuses;
    /// [`Error::Unknown`] when it may have been done, so that it is to be repeated or looked at.
    pub async fn try_set_permits(&self, permits: u32) -> Result<bool, Error> {
        let reply = self.locks.shared().connection.semaphore_set(&self.name, permits).await;
        reply.map_err(|failure| failure.outcome("set permits"))
    }

    /// Add permits, or take some away: then the number of free ones may go below zero until enough
    /// have come back. Makes the semaphore if need be.
    ///
    /// # Errors
    /// As [`try_set_permits`](Self::try_set_permits).
    pub async fn add_permits(&self, permits: i64) -> Result<(), Error> {
        let shared = self.locks.shared();
        let (connection, token) = (&shared.connection, shared.token());
        let reply = connection.semaphore_give(&self.name, &token, permits, Give::Always).await;
        reply.map(drop).map_err(|failure| failure.outcome("add permits"))
    }

    /// How many permits are free, those included that have expired.
    ///
    /// # Errors
    /// [`Error::Unavailable`] or [`Error::Rejected`].
    pub async fn available(&self) -> Result<i64, Error> {
        let reply = self.locks.shared().connection.permits_available(&self.name).await;
        reply.map_err(|failure| failure.unavailable("available"))
    }

    /// Take a permit; `None` if none is free or there is no semaphore. One command, limited by the
    /// command timeout.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when Redis does not answer; what was taken after all is given back in
    /// the background. [`Error::Rejected`] when it refuses; [`Error::Closed`].
    pub async fn try_acquire(&self) -> Result<Option<LeasedPermit>, Error> {
        match self.attempt().await? {
            Try::Got(permit) => Ok(Some(permit)),
            Try::None(_) => Ok(None),
        }
    }

    /// Take a permit, waiting for it as long as it takes; also for the semaphore to be made.
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire): waiting ends when Redis cannot be asked.
    pub async fn acquire(&self) -> Result<LeasedPermit, Error> {
        loop {
            if let Some(permit) = self.wait(None).await? {
                return Ok(permit);
            }
        }
    }

    /// Take a permit, waiting no longer than `limit`; `None` when none was to be had. The limit
    /// holds for everything, a Redis that does not answer included. With a limit of zero this is
    /// [`try_acquire`](Self::try_acquire).
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire); [`Error::Unavailable`] also when Redis owes an answer
    /// at the limit.
    pub async fn acquire_within(&self, limit: Duration) -> Result<Option<LeasedPermit>, Error> {
        if limit.is_zero() {
            return self.try_acquire().await;
        }
        self.wait(ends(limit)).await
    }

    async fn wait(&self, until: Option<Instant>) -> Result<Option<LeasedPermit>, Error> {
        wait(self.locks.shared(), self.name.channel(), until, || self.attempt()).await
    }

    /// One try, finished by the janitor if the caller goes away.
    async fn attempt(&self) -> Result<Try<LeasedPermit>, Error> {
        self.locks.shared().janitor.finish(attempt(self.clone())).await
    }
}

impl fmt::Debug for LeasedSemaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeasedSemaphore")
            .field("name", &self.name)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

/// Send one acquire command and draw the consequences of its reply.
async fn attempt(semaphore: LeasedSemaphore) -> Result<Try<LeasedPermit>, Error> {
    let LeasedSemaphore { locks, name, lease } = semaphore;
    let shared = locks.shared().clone();
    shared.open()?;
    let (id, sent) = (Uuid::new_v4(), Instant::now());
    let reply = shared.connection.permit_acquire(&name, id, lease).await;
    let held = Held { locks, name, id, ends: sent + lease };
    let failure = match reply {
        Ok(None) if Instant::now() < held.ends => {
            return Ok(Try::Got(LeasedPermit { held, armed: true }));
        }
        // Nobody polled us for so long that the lease is over before it began.
        Ok(None) => Failure::Unknown("the answer was read after the lease had ended".to_owned()),
        Ok(Some(free_in)) => {
            return Ok(Try::None(u64::try_from(free_in).ok().map(Duration::from_millis)));
        }
        Err(failure) => failure,
    };
    if matches!(failure, Failure::Unknown(_)) {
        shared.janitor.run(settle(Held { ends: Instant::now() + lease, ..held }));
    }
    Err(failure.unavailable("acquire"))
}

impl LeasedPermit {
    /// Give the permit back, and tell a waiter. Once begun, it is finished even if the future is
    /// dropped.
    ///
    /// # Errors
    /// [`Error::Lost`] when its lease had ended, by the server's clock: another may have had it
    /// since. [`Error::Unavailable`] or [`Error::Unknown`] when Redis could not be told or did not
    /// answer: the release is repeated in the background until the lease has ended.
    pub async fn release(mut self) -> Result<(), Error> {
        self.armed = false;
        let held = self.held.clone();
        drop(self);
        let janitor = held.locks.shared().janitor.clone();
        janitor.finish(release(held)).await
    }

    /// Hold it for `lease` from now on.
    ///
    /// # Errors
    /// [`Error::Lost`] when its lease has ended. [`Error::Unavailable`] or [`Error::Unknown`] when
    /// Redis could not be told or did not answer: it may or may not be extended, and
    /// [`valid_for`](Self::valid_for) says what is certain.
    pub async fn extend(&mut self, lease: Duration) -> Result<(), Error> {
        let lease = super::config::clamp_lease(lease);
        let sent = Instant::now();
        // Whatever becomes of the command, a shorter lease may have taken effect.
        self.held.ends = self.held.ends.min(sent + lease);
        let connection = &self.held.locks.shared().connection;
        match connection.permit_extend(&self.held.name, self.held.id, lease).await {
            Ok(true) => {
                self.held.ends = sent + lease;
                Ok(())
            }
            Ok(false) => {
                self.held.ends = sent;
                Err(Error::Lost(LostReason::Expired))
            }
            Err(failure) => Err(failure.outcome("extend")),
        }
    }

    /// For how long from now the permit is held for certain, by this machine's monotonic clock,
    /// counted from before the last confirmed command was sent.
    pub fn valid_for(&self) -> Duration {
        self.held.ends.saturating_duration_since(Instant::now())
    }

    /// The permit's id as Redisson shows it: 32 hexadecimal digits.
    pub fn id(&self) -> String {
        self.held.id.simple().to_string()
    }
}

impl fmt::Debug for LeasedPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeasedPermit")
            .field("name", &self.held.name)
            .field("id", &self.held.id)
            .finish_non_exhaustive()
    }
}

impl Drop for LeasedPermit {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        let held = self.held.clone();
        self.held.locks.shared().janitor.run(async move {
            let name = held.name.clone();
            if let Err(error) = release(held).await {
                tracing::debug!(semaphore = ?name, fault = %error, "dropped permit not given back at once");
            }
        });
    }
}

async fn release(held: Held) -> Result<(), Error> {
    let shared = held.locks.shared().clone();
    match shared.connection.permit_release(&held.name, held.id).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::Lost(LostReason::Expired)),
        Err(failure) => {
            if !matches!(failure, Failure::Rejected(_)) {
                shared.janitor.run(settle(held));
            }
            Err(failure.outcome("release"))
        }
    }
}

/// Repeat the release until Redis has answered twice that the permit is not out, or until the lease
/// must have ended.
async fn settle(held: Held) {
    let mut gone_before = false;
    let mut pause = Duration::from_millis(25);
    let shared = held.locks.shared();
    while Instant::now() < held.ends {
        {
            let _permit = shared.cleanup_permit().await;
            match shared.connection.permit_release(&held.name, held.id).await {
                Ok(true) | Err(Failure::Rejected(_)) => return,
                Ok(false) if gone_before => return,
                Ok(false) => gone_before = true,
                Err(_) => {}
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}
