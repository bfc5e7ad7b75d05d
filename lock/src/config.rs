//! Settings of the locks: lease, timeouts and replica acknowledgement.

use std::time::Duration;

/// The longest lease and timeout. Longer values are cut, so that no sum of instants overflows.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// How long leases last and how long Redis may take to answer.
///
/// ```
/// use std::time::Duration;
/// use redisson_lock::LockConfig;
///
/// let config = LockConfig::default().with_lease(Duration::from_secs(10));
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LockConfig {
    /// Lease of a lock that the watchdog renews, which it does every third of this time. Default
    /// 30 s, as in Redisson; at least 50 ms.
    pub lease: Duration,
    /// How long one command may take, a reconnect included, before its outcome counts as unknown.
    /// Default 1 s; at least 10 ms.
    pub command_timeout: Duration,
    /// How long opening a connection may take. Default 1 s; at least 10 ms.
    pub connect_timeout: Duration,
    /// How often a waiter tries while it cannot be woken by a message: because the server does not
    /// allow its user the channel, or the connection for messages is being made. Default 500 ms; at
    /// least 10 ms.
    pub poll_interval: Duration,
    /// How many replicas have to acknowledge an acquire. Default `None`: the master alone decides.
    ///
    /// An acquire that too few replicas acknowledge in time is undone and fails with
    /// [`Error::Unavailable`](crate::Error::Unavailable). This makes it less likely that a failover
    /// loses a lock, not impossible: Redis may promote a replica that was not among those, and
    /// renewals and releases are not waited for. It costs one more round trip to the master and one
    /// to its replicas for each successful acquire.
    pub replicas: Option<Replicas>,
}

/// How many replicas have to acknowledge an acquire, and within what time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replicas {
    /// How many replicas of the master that holds the lock. 0 disables the check.
    pub count: u32,
    /// How long to wait for them, in addition to the command timeout; at least 1 ms.
    pub timeout: Duration,
}

impl Replicas {
    /// `count` replicas within `timeout`.
    pub fn new(count: u32, timeout: Duration) -> Self {
        Self { count, timeout }
    }
}

impl Default for LockConfig {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            command_timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(1),
            poll_interval: Duration::from_millis(500),
            replicas: None,
        }
    }
}

impl LockConfig {
    /// Set [`lease`](Self::lease).
    #[must_use]
    pub fn with_lease(self, lease: Duration) -> Self {
        Self { lease, ..self }
    }

    /// Set [`command_timeout`](Self::command_timeout).
    #[must_use]
    pub fn with_command_timeout(self, command_timeout: Duration) -> Self {
        Self { command_timeout, ..self }
    }

    /// Set [`connect_timeout`](Self::connect_timeout).
    #[must_use]
    pub fn with_connect_timeout(self, connect_timeout: Duration) -> Self {
        Self { connect_timeout, ..self }
    }

    /// Set [`poll_interval`](Self::poll_interval).
    #[must_use]
    pub fn with_poll_interval(self, poll_interval: Duration) -> Self {
        Self { poll_interval, ..self }
    }

    /// Set [`replicas`](Self::replicas).
    #[must_use]
    pub fn with_replicas(self, replicas: Replicas) -> Self {
        Self { replicas: Some(replicas), ..self }
    }

    /// The same settings with every value brought into a range that works.
    pub(crate) fn clamped(mut self) -> Self {
        let floor = Duration::from_millis(10);
        // Shorter leases could not be renewed in time on any machine.
        self.lease = clamp_lease(self.lease).max(floor * 5);
        self.command_timeout = self.command_timeout.clamp(floor, LONGEST);
        self.connect_timeout = self.connect_timeout.clamp(floor, LONGEST);
        self.poll_interval = self.poll_interval.clamp(floor, LONGEST);
        self.replicas = self.replicas.filter(|replicas| replicas.count > 0).map(|replicas| {
            // For WAIT, 0 would mean forever.
            let timeout = replicas.timeout.clamp(Duration::from_millis(1), LONGEST);
            Replicas { timeout, ..replicas }
        });
        self
    }

    /// Time between two renewals: a third of the lease leaves two more chances to reach Redis.
    pub(crate) fn renewal_interval(lease: Duration) -> Duration {
        lease / 3
    }
}

/// A lease in whole milliseconds, as Redis counts them, and at least 1 ms: a lease of 0 would delete
/// the key at once.
pub(crate) fn clamp_lease(lease: Duration) -> Duration {
    Duration::from_millis(millis(lease)).clamp(Duration::from_millis(1), LONGEST)
}

/// Whole milliseconds, as Redis counts them.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
