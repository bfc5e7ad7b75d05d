//! Settings of the locks: lease and timeouts.

use std::time::Duration;

/// The longest lease, timeout and wait. Longer values are cut, so that no sum of instants overflows.
pub(crate) const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// How long leases last, and how long Redis may take to answer.
///
/// Begin with [`LockConfig::default`] and change what has to differ.
/// [`Locks::connect`](crate::Locks::connect) corrects values that are out of range: no time is longer
/// than 365 days, and each setting names its shortest.
///
/// ```
/// use std::time::Duration;
/// use redisson_lock::LockConfig;
///
/// let config = LockConfig::default()
///     .with_lease(Duration::from_secs(10))
///     .with_command_timeout(Duration::from_millis(500));
/// assert_eq!(config.lease(), Duration::from_secs(10));
/// ```
#[derive(Debug, Clone)]
pub struct LockConfig {
    pub(crate) lease: Duration,
    pub(crate) command_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) poll_interval: Duration,
    pub(crate) pubsub: bool,
    pub(crate) outage_limit: Option<Duration>,
}

impl Default for LockConfig {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            command_timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(1),
            poll_interval: Duration::from_millis(500),
            pubsub: true,
            outage_limit: None,
        }
    }
}

impl LockConfig {
    /// Lease of a lock that the watchdog renews, every third of this time. In Redis it is the key's
    /// expiry, in whole milliseconds. Default 30 s, as in Redisson; at least 50 ms.
    #[must_use]
    pub fn with_lease(self, lease: Duration) -> Self {
        Self { lease, ..self }
    }

    /// How long one command may take, a reconnect included, before its outcome counts as unknown.
    /// Default 1 s; at least 10 ms.
    #[must_use]
    pub fn with_command_timeout(self, command_timeout: Duration) -> Self {
        Self {
            command_timeout,
            ..self
        }
    }

    /// How long opening a connection may take, TLS and login included. Default 1 s; at least 10 ms.
    #[must_use]
    pub fn with_connect_timeout(self, connect_timeout: Duration) -> Self {
        Self {
            connect_timeout,
            ..self
        }
    }

    /// How often a waiter tries while it cannot be woken by a message: without
    /// [Pub/Sub](Self::with_pubsub), where the server does not allow its user the channel or has no
    /// RESP3, and while the connection for messages is being made. Default 500 ms; at least 10 ms.
    #[must_use]
    pub fn with_poll_interval(self, poll_interval: Duration) -> Self {
        Self {
            poll_interval,
            ..self
        }
    }

    /// Whether waiters are woken by messages, over one more connection to each node (RESP3,
    /// SUBSCRIBE). Default `true`. With `false` there is no such connection and each waiter polls, every
    /// [`poll_interval`](Self::with_poll_interval): for proxies that pass no Pub/Sub on, and servers
    /// without it. Releases are published all the same, for other clients.
    #[must_use]
    pub fn with_pubsub(self, pubsub: bool) -> Self {
        Self { pubsub, ..self }
    }

    /// How long a waiting call goes on while Redis does not answer: then it fails with
    /// [`Error::Unavailable`](crate::Error::Unavailable). Each answer starts the limit anew. Default: no
    /// limit, so that a wait survives every outage. Set one where a request handler waits.
    #[must_use]
    pub fn with_outage_limit(self, outage_limit: Duration) -> Self {
        Self {
            outage_limit: Some(outage_limit),
            ..self
        }
    }

    /// See [`with_lease`](Self::with_lease).
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// The same settings with every value brought into a range that works.
    pub(crate) fn clamped(mut self) -> Self {
        let floor = Duration::from_millis(10);
        // Shorter leases could not be renewed in time on any machine.
        self.lease = clamp_lease(self.lease).max(floor * 5);
        self.command_timeout = self.command_timeout.clamp(floor, LONGEST);
        self.connect_timeout = self.connect_timeout.clamp(floor, LONGEST);
        self.poll_interval = self.poll_interval.clamp(floor, LONGEST);
        self.outage_limit = self.outage_limit.map(|limit| limit.min(LONGEST));
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

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
