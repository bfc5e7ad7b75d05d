//! The leased semaphore: its permits have ids and leases, so that those of a crashed holder are freed.

use std::time::Duration;

use crate::config::clamp_lease;
use crate::kinds::leased_permits::Leased;
use crate::kinds::semaphore::Semaphore;
use crate::locks::Locks;

/// A semaphore whose permits expire, shared with Redisson's clients.
///
/// The ids make every command count once, however often it is sent, and a permit that is not
/// released is free again after its lease: none can be lost for longer, and none released twice. As
/// with every lease, a holder that outlives it is one too many: check
/// [`valid_for`](crate::LeasedPermits::valid_for), and [`extend`](crate::LeasedPermits::extend) it in time, or have it
/// [renewed](LeasedSemaphore::with_renewal).
///
/// Leases run on the server's clock (Redis 5 or newer). Redisson's clients go by their own: one whose
/// clock is fast frees permits early, also ours.
///
/// [`LockConfig::with_replicas`](crate::LockConfig::with_replicas) has no effect here: a failover may lose a
/// permit, and then there is one holder too many until its work is done.
///
/// # On the wire
/// As Redisson 3.17 to 4.7: a string with the number of free permits, as for
/// [`Semaphore`](crate::Semaphore), and `{name}:timeout`, a sorted set of the 16-byte ids of the
/// acquired permits by the time at which each expires. The next command of any client frees what has
/// expired.
///
/// ```no_run
/// # async fn example(locks: redisson_lock::Locks) -> Result<(), redisson_lock::Error> {
/// use std::time::Duration;
///
/// let semaphore = locks.leased_semaphore("payments", Duration::from_secs(30)).with_renewal();
/// semaphore.try_set_permits(20).await?;
/// let permit = semaphore.acquire(1).await?;
/// // ... no more than twenty at once, even if some of them crashed ...
/// permit.release().await?;
/// # Ok(())
/// # }
/// ```
pub type LeasedSemaphore = Semaphore<Leased>;

impl Locks {
    /// The semaphore of this name whose permits last for `lease` (at least 1 ms). Sends nothing.
    pub fn leased_semaphore(&self, name: &str, lease: Duration) -> LeasedSemaphore {
        Semaphore::new(
            self,
            name,
            Leased {
                lease: clamp_lease(lease),
                renewed: false,
            },
        )
    }
}

impl LeasedSemaphore {
    /// The same semaphore, whose permits are extended every third of the lease for as long as they are
    /// held; until [`Locks::shutdown`] at the latest.
    #[must_use]
    pub fn with_renewal(mut self) -> Self {
        self.kind.renewed = true;
        self
    }
}
