//! The fair lock: first come, first served.

use crate::kind::Fair;
use crate::kinds::lock::Lock;
use crate::locks::Locks;
use crate::name::Name;

/// One owner at a time, first come, first served. Redisson's `getFairLock`.
///
/// Waiters are in a queue in Redis. Only the first is notified of a release, and no other acquire
/// overtakes it, not even a [`try_acquire`](Lock::try_acquire) while the lock is free. A waiter keeps
/// its position by trying again every third of the configured lease, and leaves the queue at once
/// when it gives up. If it cannot tell the server so, its place becomes void at its own time limit
/// all the same; Redisson's clients do not know that limit.
///
/// When a holder dies, the next waiter acquires as the holder's lease ends, however short that lease
/// is. So does a waiter of Redisson's in front of one of this crate's. A waiter of Redisson's that is
/// the last in the queue, behind a holder of this crate, acquires up to a second later.
///
/// A waiter that died is removed within a lease by all clients of this crate. Redisson's clients
/// remove it, as they do each other, after their `fairLockWaitTimeout`, 5 min for each position. A
/// waiter that is cut off from Redis for longer than a lease starts again at the end.
///
/// Redisson uses the clocks of its own machines, this lock the server's. Where both are used, keep
/// the clocks within a second of each other, or Redisson's last waiter behind a holder that died may
/// sleep on. Do not share a name between fair locks and other kinds: they exclude each other, but
/// ignore each other's queue and notifications.
///
/// # On the wire
/// The lock is a hash as for a [`ReentrantLock`](crate::ReentrantLock). The queue is a list,
/// `redisson_lock_queue:{name}`, with a sorted set of the times at which its waiters count as dead,
/// `redisson_lock_timeout:{name}`; both exist only while somebody waits. A second sorted set,
/// `lock_waiters_alive:{name}`, is only this crate's: its own waiters count as dead much earlier. Each
/// waiter subscribes to a channel of its own, `redisson_lock__channel:{name}:<owner>`.
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
