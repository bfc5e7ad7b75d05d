//! The few durations a process chooses for its locks. Plain data with safe limits; nothing here
//! talks to Redis.

use std::time::Duration;

/// How long a lease may be at most. Longer values are cut, so that no sum of instants overflows.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// How long leases last and how long Redis may take to answer.
#[derive(Debug, Clone)]
pub struct LockConfig {
    /// Lease of a lock that the watchdog keeps alive; it is renewed every third of this time.
    /// Default 30 s, as in Redisson.
    pub lease: Duration,
    /// How long one command may take, a reconnect included, before its outcome counts as unknown.
    /// Default 1 s.
    pub command_timeout: Duration,
    /// How long opening a connection may take. Default 1 s.
    pub connect_timeout: Duration,
    /// Acquire only what so many replicas have acknowledged. Default `None`: the master's word is
    /// enough.
    ///
    /// An acquire that too few replicas acknowledge in time is undone and fails with
    /// [`Error::Unavailable`](super::Error::Unavailable). This makes it less likely that a failover
    /// forgets a lock, not impossible: Redis may promote a replica that was not among those, and a
    /// renewal or release is not waited for. It costs one more round trip to the master and one to
    /// its replicas for each acquire that succeeds.
    pub replicas: Option<Replicas>,
}

/// How many replicas have to acknowledge an acquire, and how long that may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replicas {
    /// How many, of the master that holds the lock. 0 is no condition.
    pub count: u32,
    /// How long to wait for them, in addition to the command timeout; at least 1 ms.
    pub timeout: Duration,
}

impl Default for LockConfig {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            command_timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(1),
            replicas: None,
        }
    }
}

impl LockConfig {
    /// The same settings with every value brought into a range that works.
    pub(super) fn checked(mut self) -> Self {
        let floor = Duration::from_millis(10);
        // Shorter leases could not be renewed in time, whatever the machine.
        self.lease = clamp_lease(self.lease).max(floor * 5);
        self.command_timeout = self.command_timeout.clamp(floor, LONGEST);
        self.connect_timeout = self.connect_timeout.clamp(floor, LONGEST);
        self.replicas = self.replicas.filter(|replicas| replicas.count > 0).map(|replicas| {
            // For WAIT, 0 would mean forever.
            let timeout = replicas.timeout.clamp(Duration::from_millis(1), LONGEST);
            Replicas { timeout, ..replicas }
        });
        self
    }

    /// Time between two renewals: a third of the lease leaves two more chances to reach Redis.
    pub(super) fn renew_every(lease: Duration) -> Duration {
        lease / 3
    }
}

/// Redis counts leases in whole milliseconds, and a lease of 0 would delete the key at once.
pub(super) fn clamp_lease(lease: Duration) -> Duration {
    let whole = Duration::from_millis(u64::try_from(lease.as_millis()).unwrap_or(u64::MAX));
    whole.clamp(Duration::from_millis(1), LONGEST)
}
