//! The read-write lock: one name with a side for readers and one for writers.

use crate::error::{Error, LostReason};
use crate::holding::guard::Guard;
use crate::kind::{Read, Write};
use crate::kinds::lock::Lock;
use crate::locks::Locks;
use crate::name::Name;

/// The side of a [`ReadWriteLock`] that many owners may hold at once.
pub type ReadLock = Lock<Read>;

/// The side of a [`ReadWriteLock`] that excludes every other owner.
pub type WriteLock = Lock<Write>;

/// Many readers or one writer. Redisson's `RReadWriteLock`.
///
/// The two sides are locks of their own with the calls of all others. An owner that writes may
/// acquire the read side too, and goes on reading when it releases the write side (a *downgrade*,
/// with no moment in between for another writer). The other way round is refused with
/// [`Error::OtherKind`]: two readers that waited to become writers would wait for each other
/// forever.
///
/// There is no order: while readers come and go, a writer may wait for a long time.
///
/// # On the wire
/// The key is the name: a hash with the field `mode` (`read` or `write`) and a hold count for each owner
/// (a writer's field is `<owner>:write`). Each hold of a reader has a key of its own as well,
/// `{name}:<owner>:rwlock_timeout:<number>`, whose expiry is that hold's lease. Channels are those of a
/// [`ReentrantLock`](crate::ReentrantLock).
///
/// ```no_run
/// # async fn example(locks: redisson_lock::Locks) -> Result<(), redisson_lock::Error> {
/// let lock = locks.read_write("lock:catalogue");
/// let writing = lock.write().acquire().await?;
/// // ... change it ...
/// let reading = writing.downgrade().await?;
/// // ... others may read now, and no other writer came in between ...
/// reading.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ReadWriteLock {
    read: ReadLock,
    write: WriteLock,
}

impl Locks {
    /// The read-write lock of this name: many readers or one writer. Sends nothing.
    pub fn read_write(&self, name: &str) -> ReadWriteLock {
        let name = Name::new(name);
        let read = Lock::new(self.clone(), name.clone());
        ReadWriteLock {
            read,
            write: Lock::new(self.clone(), name),
        }
    }
}

impl ReadWriteLock {
    /// The side that many owners may hold.
    pub fn read(&self) -> &ReadLock {
        &self.read
    }

    /// The side that excludes every other owner.
    pub fn write(&self) -> &WriteLock {
        &self.write
    }
}

impl Guard<Write> {
    /// Acquire the read side for the same owner and release this hold: other readers come in, and no
    /// writer in between. If the owner has several write holds, the others remain. The read hold is
    /// renewed by the watchdog, whatever lease the writer has.
    ///
    /// # Cancellation
    /// When the future is dropped, both holds are released.
    ///
    /// # Errors
    /// Those of [`Lock::try_acquire`] and of [`Guard::release`]; both are released then.
    /// [`Error::Lost`] when the lock was lost.
    pub async fn downgrade(self) -> Result<Guard<Read>, Error> {
        let lock = ReadLock::new(self.locks().clone(), Name::new(self.name()));
        // It is always granted to an owner that is still the writer.
        let Some(reading) = lock.try_acquire_as(self.owner()).await? else {
            return Err(Error::Lost(
                self.hold().lost_reason().unwrap_or(LostReason::Taken),
            ));
        };
        self.release().await?;
        Ok(reading)
    }
}
