//! The fair lock: first come, first served.

use crate::kind::Fair;
use crate::kinds::lock::Lock;
use crate::locks::Locks;
use crate::name::Name;

/// One owner at a time, first come, first served. Redisson's `getFairLock`.
///
/// Waiters are in a queue in Redis, and only the first is notified of a release; no other acquire
/// overtakes it, not even a [`try_acquire`](Lock::try_acquire) while the lock is free. A waiter
/// keeps its position by trying again every third of the configured lease, and leaves the queue at
/// once when it gives up; at its own time limit its place is void on the server even if it cannot say
/// so (for Redisson's clients, when it has said so). When a holder dies, the next acquires as its
/// lease ends, however short that is; so does a waiter of Redisson's in front of one of this crate's,
/// and up to a second later one that is the last behind a holder of this crate. A waiter that died is removed within a lease by all clients
/// of this crate; Redisson's clients remove it, as they do each other, after their
/// `fairLockWaitTimeout`, 5 min for each position. A waiter that is cut off from Redis for longer
/// than a lease starts again at the end.
///
/// Redisson goes by its machines' clocks, this lock by the server's: keep them together within a
/// second where both are used, or Redisson's last waiter behind a holder that died may sleep on. Do not share a name between fair locks and other kinds: they exclude
/// each other, but ignore each other's queue and notifications.
///
/// # On the wire
/// The lock is a hash as for a [`ReentrantLock`](crate::ReentrantLock). The queue is a list,
/// `redisson_lock_queue:{name}`, with a sorted set of the times at which its waiters count as dead,
/// `redisson_lock_timeout:{name}`; both exist only while somebody waits. Each waiter subscribes to a
/// channel of its own, `redisson_lock__channel:{name}:<owner>`.
///
/// ```no_run
/// # use std::time::Duration;
/// # async fn example(locks: redisson_lock::Locks) -> Result<(), redisson_lock::Error> {
/// let lock = locks.fair("lock:printer");
/// if let Some(guard) = lock.acquire_within(Duration::from_secs(5)).await? {
///     guard.release().await?;
/// }
/// # Ok(())
/// # }
/// ```
pub type FairLock = Lock<Fair>;

impl Locks {
    /// The fair lock of this name: first come, first served. Sends nothing.
    pub fn fair(&self, name: &str) -> FairLock {
        Lock::new(self.clone(), Name::new(name))
    }
}
