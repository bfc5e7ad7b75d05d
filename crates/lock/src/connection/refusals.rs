//! Channels that the server does not allow its user: counted, and logged once.

use std::sync::atomic::{AtomicU64, Ordering};

/// How often the server has refused the Redis user a channel, since this client was made. New users of
/// Redis 7 have no right to any channel; the crate's README lists the rights that are needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ChannelRefusals {
    /// Refused subscriptions, or connections for them (without RESP3). They are tried again every ten
    /// seconds; meanwhile waiters poll, every
    /// [`poll_interval`](crate::LockConfig::with_poll_interval).
    pub subscriptions: u64,
    /// Releases that notified no waiter: waiters of all clients then sleep until the lease they know
    /// of ends.
    pub notifications: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Refusals {
    subscriptions: AtomicU64,
    notifications: AtomicU64,
}

impl Refusals {
    pub(crate) fn subscription(&self, channel: &str, error: &str) {
        if self.subscriptions.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(
                channel,
                error,
                "the Redis user may not subscribe to a channel of the locks (ACL right &{channel}); \
                 waiters poll; further refusals are only counted"
            );
        }
    }

    /// The server, or a proxy in front of it, has no Pub/Sub for us.
    pub(crate) fn pubsub(&self, error: &str) {
        if self.subscriptions.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(
                error,
                "no connection for the messages of the locks (RESP3, right +hello); waiters poll; \
                 further refusals are only counted"
            );
        }
    }

    pub(crate) fn notification(&self, channel: &str) {
        if self.notifications.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(
                channel,
                error = "NOPERM",
                "the Redis user may not publish a release (ACL rights +publish and &{channel}); \
                 waiters learn of it late; further refusals are only counted"
            );
        }
    }

    pub(crate) fn read(&self) -> ChannelRefusals {
        ChannelRefusals {
            subscriptions: self.subscriptions.load(Ordering::Relaxed),
            notifications: self.notifications.load(Ordering::Relaxed),
        }
    }
}
