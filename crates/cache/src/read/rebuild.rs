//! One load per cluster: acquire the rebuild mutex, check again, load, store under the lease. All
//! loads that are stored go through here, except those of the strategies without a mutex.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cache::Inner;
use crate::connection::redis_commands::{LeaseReply, RebuildMutex, unique_token};
use crate::encoding::{Decoded, Encoded, Format, decode};
use crate::error::{Error, ReadError};
use crate::keys::mutex_key;
use crate::load::Loader;
use crate::local_cache::VersionStamp;
use crate::policy::CachePolicy;
use crate::value::{CacheValue, CachedValue};

/// Pause, in milliseconds, between two polls for another node's result. Random, so that nodes do
/// not poll in step.
const POLL_PAUSE_MS: std::ops::RangeInclusive<u64> = 3..=12;

/// How many times a read loads at most, if each time what it loaded was invalidated meanwhile.
const MAX_LOADS: u32 = 3;

/// Pause between attempts to release a mutex.
const RELEASE_PAUSE: Duration = Duration::from_millis(200);

/// How long to keep trying to release a mutex, if its time to live is longer.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(60);

/// Why a value is rebuilt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RebuildReason {
    /// There is no value, and a reader waits for one.
    Miss,
    /// There is a stale value, which is served meanwhile. If another node is replacing it, there is
    /// nothing to do.
    Stale,
}

/// A value, and whether it may be kept in memory.
pub(crate) struct Rebuilt<T> {
    pub(crate) value: Option<Arc<CachedValue<T>>>,
    /// Whether Redis holds this value, too, unless it was invalidated after the caller's stamp.
    pub(crate) in_redis: bool,
}

impl<T> Rebuilt<T> {
    pub(crate) fn new(value: Option<T>, in_redis: bool) -> Self {
        Self {
            value: value.map(CachedValue::new),
            in_redis,
        }
    }
}

/// One read. It owns what it needs, because its load may outlive its caller.
pub(crate) struct Reading<T, E> {
    pub(crate) inner: Arc<Inner>,
    pub(crate) key: String,
    pub(crate) policy: CachePolicy,
    /// The key's version when the read began.
    pub(crate) stamp: VersionStamp,
    pub(crate) loader: Loader<T, E>,
}

impl<T: CacheValue, E: 'static> Reading<T, E> {
    /// Loads the value once in the whole cluster, or returns what another node has loaded.
    pub(crate) async fn rebuild(
        &self,
        format: Format,
        reason: RebuildReason,
    ) -> Result<Rebuilt<T>, ReadError<E>> {
        let key = &self.key;
        let policy = &self.policy;
        let redis = &self.inner.redis;
        if reason == RebuildReason::Miss && self.is_filtered().await {
            return Ok(Rebuilt::new(None, false));
        }
        let began = Instant::now();
        let mut replace = reason == RebuildReason::Stale;
        let mut loads = 0;
        loop {
            let token = unique_token();
            // After the wait timeout, load without the mutex: its owner may be dead.
            let wait_timed_out =
                reason == RebuildReason::Miss && began.elapsed() >= policy.wait_timeout;
            let mutex = (!wait_timed_out).then(|| self.new_mutex(&token));
            let mutex = mutex.as_ref();
            let breaker_was_open = redis.breaker.is_open();
            let reply = match redis.lease_get(key, &token, mutex, replace).await {
                Ok(reply) => reply,
                Err(error) => {
                    tracing::debug!(key, %error, "loading without Redis");
                    // The command may have been executed, unless the breaker kept it back or Redis refused it.
                    let may_have_run = !breaker_was_open && !matches!(error, Error::Rejected(_));
                    if may_have_run {
                        self.release_later(mutex);
                    }
                    return self.rebuild_without_redis(reason).await;
                }
            };
            if let Some(value) = self.usable_value(&reply, format, replace) {
                if reply.lease.is_some() {
                    self.release(mutex).await;
                }
                return Ok(Rebuilt::new(value, true));
            }
            let Some(lease) = reply.lease else {
                if reason == RebuildReason::Stale {
                    return Ok(Rebuilt::new(None, false));
                }
                // A text that cannot be decoded, or has expired, must not keep the reader from loading.
                if reply.text.is_some() && !replace {
                    replace = true;
                    continue;
                }
                self.wait_for_another_load().await;
                continue;
            };
            loads += 1;
            let value = match self.inner.load_limiter.run(policy, &self.loader).await {
                Ok(value) => value,
                Err(error) => {
                    self.release(mutex).await;
                    return Err(error);
                }
            };
            match self.store(&lease, format, value.as_ref(), mutex).await {
                Some(true) => return Ok(Rebuilt::new(value, true)),
                // Invalidated since the load began: what was loaded may be outdated.
                Some(false) if loads < MAX_LOADS => policy.counters.refused.increment(),
                _ => return Ok(Rebuilt::new(value, false)),
            }
        }
    }

    /// The key's mutex, to be acquired by `owner`.
    fn new_mutex(&self, owner: &str) -> RebuildMutex {
        RebuildMutex {
            key: mutex_key(&self.key, self.inner.redis.shared_mutex),
            owner: owner.to_owned(),
            ttl: self.policy.mutex_ttl,
        }
    }

    /// The value in Redis. `Some(None)`: the row does not exist. `None`: the value has to be loaded. With `replace`, a
    /// stale value has to be loaded, too.
    fn usable_value(&self, reply: &LeaseReply, format: Format, replace: bool) -> Option<Option<T>> {
        let refresh_ahead = match format {
            Format::Plain => self.policy.capped_refresh_ahead(),
            Format::LogicalExpiry => Duration::ZERO,
        };
        match decode(reply.text.as_deref(), reply.pttl, refresh_ahead) {
            Decoded::Null => Some(None),
            Decoded::Fresh(value) => Some(Some(value)),
            Decoded::Expiring(value) if !replace => Some(Some(value)),
            Decoded::Expired(value) if !replace && format == Format::LogicalExpiry => {
                Some(Some(value))
            }
            Decoded::Missing | Decoded::Expiring(_) | Decoded::Expired(_) | Decoded::Unreadable => {
                None
            }
        }
    }

    async fn rebuild_without_redis(
        &self,
        reason: RebuildReason,
    ) -> Result<Rebuilt<T>, ReadError<E>> {
        if reason == RebuildReason::Stale {
            // Nobody waits, and nothing could be stored: each reader of the stale value would load in vain.
            return Ok(Rebuilt::new(None, false));
        }
        self.load_only().await
    }

    /// Waits a moment for the load of another node or reader, which holds the mutex or the lease.
    async fn wait_for_another_load(&self) {
        self.policy.counters.waits.increment();
        let pause = Duration::from_millis(rand::random_range(POLL_PAUSE_MS));
        tokio::time::sleep(pause).await;
    }

    /// Loads without Redis, and stores nothing.
    pub(crate) async fn load_only(&self) -> Result<Rebuilt<T>, ReadError<E>> {
        self.policy.counters.bypassed.increment();
        let value = self
            .inner
            .load_limiter
            .run(&self.policy, &self.loader)
            .await?;
        Ok(Rebuilt::new(value, false))
    }

    /// Whether the policy's Bloom filter is certain that the key does not exist.
    pub(crate) async fn is_filtered(&self) -> bool {
        let Some(filter) = &self.policy.bloom_filter else {
            return false;
        };
        let absent = !filter.may_contain(&self.key).await;
        if absent {
            self.policy.counters.filtered.increment();
        }
        absent
    }

    /// Stores what was loaded and releases the mutex. `Some(false)`: the lease was no longer valid.
    /// `None`: Redis did not confirm.
    pub(crate) async fn store(
        &self,
        lease: &str,
        format: Format,
        value: Option<&T>,
        mutex: Option<&RebuildMutex>,
    ) -> Option<bool> {
        let key = &self.key;
        let policy = &self.policy;
        let valid = if value.is_some() {
            policy.ttl
        } else {
            policy.null_ttl
        };
        let stored = match Encoded::new(value, format, valid) {
            Ok(encoded) => {
                self.inner
                    .redis
                    .lease_set(key, lease, &encoded, mutex)
                    .await
            }
            Err(error) => Err(error.into()),
        };
        match stored {
            Ok(stored) => Some(stored),
            Err(error) => {
                tracing::warn!(key, %error, "a loaded value was not stored");
                policy.counters.not_stored.increment();
                self.release_later(mutex);
                None
            }
        }
    }

    /// Releases the mutex, if there is one.
    async fn release(&self, mutex: Option<&RebuildMutex>) {
        let Some(held) = mutex else { return };
        if let Err(error) = self.inner.redis.release(held).await {
            tracing::debug!(key = held.key, %error, "rebuild mutex not released yet");
            self.release_later(mutex);
        }
    }

    /// Retries in the background to release a mutex that may be ours, so that others do not have to
    /// wait until it expires.
    fn release_later(&self, mutex: Option<&RebuildMutex>) {
        let Some(mutex) = mutex.cloned() else { return };
        let inner = self.inner.clone();
        self.inner.tasks.spawn(async move {
            let deadline = Instant::now() + mutex.ttl.min(RELEASE_TIMEOUT);
            while Instant::now() < deadline {
                tokio::time::sleep(RELEASE_PAUSE).await;
                if inner.redis.release(&mutex).await.is_ok() {
                    return;
                }
            }
        });
    }
}
