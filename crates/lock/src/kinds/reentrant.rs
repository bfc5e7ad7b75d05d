//! The reentrant lock.

use crate::kind::Reentrant;
use crate::kinds::lock::Lock;
use crate::locks::Locks;
use crate::name::Name;

/// One owner at a time, in no particular order. Redisson's `RLock`.
///
/// # On the wire
/// The key is the name: a hash of one field, the owner, with the hold count, which expires with the
/// lease. A release deletes it and publishes `0` on `redisson_lock__channel:{name}`, to which waiters
/// subscribe. A first acquire and its release are one command each.
///
/// ```no_run
/// # async fn example(locks: redisson_lock::Locks) -> Result<(), redisson_lock::Error> {
/// let guard = locks.lock("lock:report:7").acquire().await?;
/// guard.run(async { /* the work, ended when the lock is lost */ }).await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
pub type ReentrantLock = Lock<Reentrant>;

impl Locks {
    /// The reentrant lock of this name, shared with every other client of the Redis, Redisson's
    /// included. Sends nothing.
    pub fn lock(&self, name: &str) -> ReentrantLock {
        Lock::new(self.clone(), Name::new(name))
    }
}
