//! The read-write lock: nothing but a name with two sides.

use super::family::{Lock, ReadLock, WriteLock};
use super::locks::Locks;
use super::name::LockName;

/// Many readers or one writer. Redisson's `RReadWriteLock`.
///
/// The two sides are locks of their own with the calls of all others. An owner that writes may take
/// the reading side too, and goes on reading when it gives the writing side back (a *downgrade*,
/// with no moment in between for another writer). The other way round is refused with
/// [`Error::OtherKind`](super::Error::OtherKind): two readers that waited to become writers would
/// wait for each other for ever.
///
/// There is no order: while readers come and go, a writer may wait for long.
///
/// ```no_run
/// # async fn example(locks: redisson_lock::Locks) -> Result<(), redisson_lock::Error> {
/// let (lock, me) = (locks.read_write("lock:catalogue")?, locks.owner());
/// let writing = lock.write().acquire(&me).await?;
/// // ... change it ...
/// let reading = lock.read().acquire(&me).await?;
/// writing.release().await?;
/// // ... others may read now, and nobody has changed it in between ...
/// reading.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ReadWriteLock {
    read: ReadLock,
    write: WriteLock,
}

impl ReadWriteLock {
    pub(super) fn new(locks: Locks, name: LockName) -> Self {
        Self { read: Lock::new(locks.clone(), name.clone()), write: Lock::new(locks, name) }
    }

    /// The side that many may hold.
    pub fn read(&self) -> &ReadLock {
        &self.read
    }

    /// The side that excludes all others.
    pub fn write(&self) -> &WriteLock {
        &self.write
    }
}
