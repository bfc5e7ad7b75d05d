//! The reentrant lock.

use crate::error::Error;
use crate::kind::Reentrant;
use crate::kinds::lock::Lock;
use crate::locks::Locks;
use crate::name::LockName;

/// One owner at a time, in no particular order. Redisson's `RLock`.
///
/// # On the wire
/// The key is the name: a hash of one field, the owner, with the hold count, which expires with the
/// lease. A release deletes it and publishes `0` on `redisson_lock__channel:{name}`, to which waiters
/// subscribe. A first acquire and its release are one command each.
///
/// ```no_run
/// # async fn example(locks: redisson_lock::Locks) -> Result<(), redisson_lock::Error> {
/// let owner = locks.owner();
/// if let Some(guard) = locks.reentrant("lock:report:7")?.try_acquire(&owner).await? {
///     // ... the work, which may also watch `guard.lost()` ...
///     guard.release().await?;
/// }
/// # Ok(())
/// # }
/// ```
pub type ReentrantLock = Lock<Reentrant>;

impl Locks {
    /// The reentrant lock of this name, shared with every other client of the Redis, Redisson's
    /// included. Sends nothing.
    ///
    /// # Errors
    /// [`Error::InvalidName`] for a name that could not work on a Redis Cluster: empty, or with
    /// braces that form no hash tag (`a{b`, `a}b`, `a{}b`).
    pub fn reentrant(&self, name: &str) -> Result<ReentrantLock, Error> {
        Ok(Lock::new(self.clone(), LockName::new(name)?))
    }
}
