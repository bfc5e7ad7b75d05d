//! The fenced lock: a reentrant lock with a fencing token.

use crate::kind::Fenced;
use crate::kinds::lock::Lock;
use crate::locks::Locks;
use crate::name::Name;

/// A reentrant lock whose guards carry a *fencing token*: a number that is higher for each first
/// acquire than for all before it. Redisson's `RFencedLock`.
///
/// A lock in Redis cannot stop a holder that was paused past its lease. A resource that remembers
/// the highest token it has seen, and refuses writes with a lower one, can; see
/// `examples/fenced_resource.rs`.
///
/// The numbers come from `redisson_lock_token:{name}`, a counter without expiry. They rise as long
/// as Redis keeps it: after a failover to a replica that had not yet received the last number, or
/// the loss of all data, numbers may repeat or start again. Until the counter has passed the highest
/// number that a resource has seen, the resource then refuses writes that it should accept, and it
/// cannot tell two holders with the same number apart. A re-entry has the number of the first acquire
/// (Redisson takes a new one).
///
/// # On the wire
/// As a [`ReentrantLock`](crate::ReentrantLock), and the counter.
///
/// ```no_run
/// # async fn example(locks: redisson_lock::Locks) -> Result<(), redisson_lock::Error> {
/// let guard = locks.fenced("lock:ledger").acquire().await?;
/// // UPDATE ledger SET ..., fence = {fence} WHERE id = 1 AND fence <= {fence}
/// let fence: u64 = guard.fence();
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
pub type FencedLock = Lock<Fenced>;

impl Locks {
    /// The fenced lock of this name: a reentrant lock whose guards carry a fencing token. Sends
    /// nothing.
    pub fn fenced(&self, name: &str) -> FencedLock {
        Lock::new(self.clone(), Name::new(name))
    }
}
