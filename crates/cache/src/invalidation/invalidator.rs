//! Sends invalidations, and retries those that Redis did not confirm until it does. While one is
//! pending, this process reads that key from the source.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::pending::PendingInvalidations;
use crate::connection::redis_commands::RedisCommands;
use crate::local_cache::LocalCache;
use crate::stats::CacheCounters;

/// The first pause before a retry; doubled up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// The longest pause between two retries.
const MAX_PAUSE: Duration = Duration::from_millis(200);

/// Invalidates keys in this process, in Redis and on every other node.
pub(crate) struct Invalidator {
    pub(crate) redis: Arc<RedisCommands>,
    pub(crate) local: Arc<LocalCache>,
    pub(crate) counters: Arc<CacheCounters>,
    pub(crate) pending: PendingInvalidations,
}

impl Invalidator {
    /// Invalidates one key. Returns `false` if Redis did not confirm, so that it is retried.
    pub(crate) async fn invalidate(&self, key: &str) -> bool {
        // With the circuit breaker open this is left to the retries, which are frequent.
        if !self.redis.breaker.is_open() && self.send(key).await {
            return true;
        }
        // From here on this process does not read the key from Redis.
        self.pending.add(key);
        self.local.invalidate(key);
        false
    }

    /// Retries pending invalidations until `stop`, and once more then.
    pub(crate) async fn retry_pending(&self, stop: &CancellationToken) {
        let mut pause = FIRST_PAUSE;
        loop {
            if self.pending.len() == 0 {
                pause = FIRST_PAUSE;
                tokio::select! {
                    () = self.pending.added() => {}
                    () = stop.cancelled() => return,
                }
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => {
                    self.send_pending().await;
                    return;
                }
            }
            let all_sent = self.send_pending().await;
            pause = if all_sent {
                FIRST_PAUSE
            } else {
                (pause * 2).min(MAX_PAUSE)
            };
        }
    }

    /// Sends all that is pending, up to the first failure. Returns whether all were confirmed.
    async fn send_pending(&self) -> bool {
        for (key, change) in self.pending.snapshot() {
            if !self.send(&key).await {
                return false;
            }
            self.pending.confirm(&key, change);
            tracing::info!(key, "pending invalidation delivered");
        }
        true
    }

    /// Sends one invalidation. Returns whether Redis confirmed it.
    async fn send(&self, key: &str) -> bool {
        self.local.invalidate(key);
        let sent = self.redis.invalidate(key).await;
        // Once more: a reader may have read Redis just before the deletion.
        self.local.invalidate(key);
        match &sent {
            Ok(()) => self.counters.invalidations_sent.increment(),
            Err(error) => {
                self.counters.invalidation_failures.increment();
                tracing::warn!(key, %error, "invalidation not confirmed; it is retried");
            }
        }
        sent.is_ok()
    }
}
