//! The fenced lock: a reentrant lock with a fencing token.

use std::time::Duration;

use crate::config::clamp_lease;
use crate::kind::Fenced;
use crate::kinds::lock::Lock;
use crate::locks::Locks;
use crate::name::LockName;

/// A reentrant lock whose guards carry a *fencing token*: a number that is higher for each first
/// acquire than for all before it. Redisson's `RFencedLock`.
///
/// A lock in Redis cannot stop a holder that was paused past its lease. A resource that remembers
/// the highest token it has seen, and refuses writes with a lower one, can; see
/// `examples/fenced_resource.rs`.
///
/// The numbers come from `redisson_lock_token:{name}`, a counter without expiry. They rise as long
/// as Redis keeps it: after a failover to a replica that had not yet received the last number, or
/// the loss of all data, numbers may repeat or start again. A resource then refuses what it should
/// accept until the counter has passed what it has seen, and cannot tell two holders of one number
/// apart; [`with_expiring_counter`](Self::with_expiring_counter) avoids that where no Redisson
/// shares the lock. A re-entry has the number of the first acquire (Redisson takes a new one).
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

impl Lock<Fenced> {
    /// The same lock with a counter that expires when it was not used for `keep` (at least 1 ms), for
    /// locks with many names: a counter without expiry stays in Redis for good, one for each name.
    ///
    /// Each token is then the last one plus one, or the clock of the Redis server in microseconds
    /// since 1970 if that is higher. So tokens rise though the counter has expired, or all data was
    /// lost, as long as the clock is not set back while there is no counter: keep it for longer than
    /// a clock may ever be set back, an hour, say. They rise over a failover too, if the clocks of
    /// both servers differ by less than it takes. Tokens need 51 bits, and the resource a 64-bit
    /// integer to remember them.
    ///
    /// **Not beside Redisson**, nor beside locks of this name without this setting: they count on
    /// from what they find, which is right while the counter exists, and from 1 when it has expired.
    /// To change over, set it for all users of the name; the tokens go on above the old ones. There
    /// is no way back but to leave the counter as it is, without expiry (`PERSIST`).
    #[must_use]
    pub fn with_expiring_counter(mut self, keep: Duration) -> Self {
        self.acquirer.counter_ttl = Some(clamp_lease(keep));
        self
    }
}

impl Locks {
    /// The fenced lock of this name: a reentrant lock whose guards carry a fencing token. Sends
    /// nothing.
    pub fn fenced(&self, name: &str) -> FencedLock {
        Lock::new(self.clone(), LockName::new(name))
    }
}
