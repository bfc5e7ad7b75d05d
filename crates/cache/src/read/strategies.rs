//! The read strategies, each a few lines over the same parts.

use std::sync::Arc;
use std::time::Duration;

use crate::cache::{Cache, Inner};
use crate::connection::redis_commands::unique_token;
use crate::encoding::{Decoded, Format, decode};
use crate::error::Error;
use crate::local_cache::VersionStamp;
use crate::policy::CachePolicy;
use crate::read::load::Loader;
use crate::read::rebuild::{RebuildReason, Rebuilt};
use crate::read::single_flight::{Role, SingleFlight};
use crate::strategy::ReadStrategy;
use crate::value::{CacheValue, CachedValue, ReadResult};

/// What Redis holds, or `None`: Redis cannot be used.
type RedisLookup<T> = Option<Decoded<Arc<CachedValue<T>>>>;

impl Cache {
    /// Reads `key` with `strategy`. `None` means that it does not exist, never that it is not cached.
    ///
    /// Apart from the two strategies without a mutex, loads run in tasks of their own: a reader that
    /// is dropped does not cancel a load that others wait for.
    ///
    /// # Errors
    /// If the value has to be loaded and cannot be. A failing Redis is not an error.
    pub async fn read<T: CacheValue, E: Send + Sync + 'static>(
        &self,
        strategy: ReadStrategy,
        key: &str,
        policy: &CachePolicy,
        loader: impl Loader<T, E>,
    ) -> ReadResult<T, E> {
        match strategy {
            ReadStrategy::CacheAside => self.read_aside(key, policy, loader).await,
            ReadStrategy::NullCaching => self.read_with_null_caching(key, policy, loader).await,
            ReadStrategy::Mutex => self.read_with_mutex(key, policy, loader).await,
            ReadStrategy::LogicalExpiry => self.read_with_logical_expiry(key, policy, loader).await,
            ReadStrategy::Layered => self.read_layered(key, policy, loader).await,
        }
    }

    /// Plain cache-aside: get, load, store. The baseline for comparisons: every read of an absent id
    /// reaches the source, and so does every reader of a hot key that expires.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn read_aside<T: CacheValue, E: Send + Sync + 'static>(
        &self,
        key: &str,
        policy: &CachePolicy,
        loader: impl Loader<T, E>,
    ) -> ReadResult<T, E> {
        self.aside(key, policy, false, loader).await
    }

    /// Cache-aside with null caching: that a row does not exist is stored as `""` for a short time.
    /// Against *cache penetration* by repeated absent ids. Costs a key in Redis for each of them; if
    /// absent ids are unbounded, set [`CachePolicy::bloom_filter`].
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn read_with_null_caching<T: CacheValue, E: Send + Sync + 'static>(
        &self,
        key: &str,
        policy: &CachePolicy,
        loader: impl Loader<T, E>,
    ) -> ReadResult<T, E> {
        self.aside(key, policy, true, loader).await
    }

    /// One reader loads; in this process the others wait for its outcome (single-flight), in other
    /// processes they poll every few milliseconds. Against *cache breakdown*, a hot key that expires.
    /// Costs a wait for the load, at most [`CachePolicy::wait_timeout`] for another node's.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn read_with_mutex<T: CacheValue, E: Send + Sync + 'static>(
        &self,
        key: &str,
        policy: &CachePolicy,
        loader: impl Loader<T, E>,
    ) -> ReadResult<T, E> {
        let stamp = self.inner.local.stamp(key);
        match self.inner.get_from_redis(key, policy, None).await {
            Some(Decoded::Fresh(value) | Decoded::Stale(value)) => Ok(Some(value)),
            Some(Decoded::Null) => Ok(None),
            Some(Decoded::Missing | Decoded::Unreadable) => {
                self.load_shared(key, policy, stamp, Format::Plain, loader).await
            }
            None => self.bypass(key, policy, stamp, loader).await,
        }
    }

    /// Values carry the time until which they are fresh, and their keys do not expire. A stale value
    /// is served while one task in the cluster rebuilds it in the background. A key that was never
    /// stored, or was invalidated, is loaded as with the mutex: missing does not mean absent.
    /// Against *cache breakdown*, without a waiting reader. Costs stale answers for the time of one
    /// load after expiry, and keys that stay in Redis until they are deleted.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn read_with_logical_expiry<T: CacheValue, E: Send + Sync + 'static>(
        &self,
        key: &str,
        policy: &CachePolicy,
        loader: impl Loader<T, E>,
    ) -> ReadResult<T, E> {
        let stamp = self.inner.local.stamp(key);
        match self.inner.get_from_redis(key, policy, None).await {
            Some(Decoded::Fresh(value)) => Ok(Some(value)),
            Some(Decoded::Stale(value)) => {
                policy.counters.stale_served.increment();
                self.inner.rebuild_in_background(key, policy, stamp, Format::LogicalExpiry, loader);
                Ok(Some(value))
            }
            Some(Decoded::Null) => Ok(None),
            Some(Decoded::Missing | Decoded::Unreadable) => {
                self.load_shared(key, policy, stamp, Format::LogicalExpiry, loader).await
            }
            None => self.bypass(key, policy, stamp, loader).await,
        }
    }

    /// Memory, then Redis with one lookup per process, then one load per process and cluster. A value
    /// about to expire is served while it is rebuilt (refresh-ahead). The default choice.
    /// Costs memory, and stale answers after an invalidation for as long as its message travels, at
    /// most for [`CachePolicy::local_ttl`].
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn read_layered<T: CacheValue, E: Send + Sync + 'static>(
        &self,
        key: &str,
        policy: &CachePolicy,
        loader: impl Loader<T, E>,
    ) -> ReadResult<T, E> {
        if let Some(value) = self.inner.local.get(key) {
            policy.counters.local_hits.increment();
            // A task that only ever hits memory must let others run.
            tokio::task::coop::consume_budget().await;
            return Ok(value);
        }
        let stamp = self.inner.local.stamp(key);
        let work = || {
            let (inner, key, policy) = self.owned(key, policy);
            async move { inner.layered(&key, &policy, stamp, loader).await }
        };
        self.inner.single_flight(&self.inner.reads, key, policy, stamp, work).await
    }

    async fn aside<T: CacheValue, E: Send + Sync + 'static>(
        &self,
        key: &str,
        policy: &CachePolicy,
        cache_nulls: bool,
        loader: impl Loader<T, E>,
    ) -> ReadResult<T, E> {
        let inner = &self.inner;
        let stamp = inner.local.stamp(key);
        let replace = match inner.get_from_redis(key, policy, None).await {
            Some(Decoded::Fresh(value) | Decoded::Stale(value)) => return Ok(Some(value)),
            Some(Decoded::Null) => return Ok(None),
            Some(found) => matches!(found, Decoded::Unreadable),
            None => return self.bypass(key, policy, stamp, loader).await,
        };
        if inner.is_filtered(key, policy).await {
            return Ok(None);
        }
        let reply = inner.redis.lease_get(key, &unique_token(), None, replace).await;
        let Ok(reply) = reply else { return self.bypass(key, policy, stamp, loader).await };
        let value = inner.load_limiter.run(policy, &loader).await?;
        if let Some(lease) = reply.lease
            && (value.is_some() || cache_nulls)
        {
            // If it is refused, another reader was first, or the key was invalidated.
            inner.store(key, &lease, policy, Format::Plain, value.as_ref(), None).await;
        }
        Ok(value.map(|value| Arc::new(CachedValue::new(value))))
    }

    /// One load per process and cluster.
    async fn load_shared<T: CacheValue, E: Send + Sync + 'static>(
        &self,
        key: &str,
        policy: &CachePolicy,
        stamp: VersionStamp,
        format: Format,
        loader: impl Loader<T, E>,
    ) -> ReadResult<T, E> {
        let work = || {
            let (inner, key, policy) = self.owned(key, policy);
            async move {
                let rebuilt =
                    inner.rebuild(&key, &policy, format, RebuildReason::Miss, &loader).await?;
                Ok(rebuilt.value)
            }
        };
        self.inner.single_flight(&self.inner.reads, key, policy, stamp, work).await
    }

    /// Redis cannot be used: one load per process, of which nothing is kept.
    async fn bypass<T: CacheValue, E: Send + Sync + 'static>(
        &self,
        key: &str,
        policy: &CachePolicy,
        stamp: VersionStamp,
        loader: impl Loader<T, E>,
    ) -> ReadResult<T, E> {
        let work = || {
            let (inner, _, policy) = self.owned(key, policy);
            async move { Ok(inner.load_only(&policy, &loader).await?.value) }
        };
        self.inner.single_flight(&self.inner.reads, key, policy, stamp, work).await
    }

    /// What a task that outlives its caller needs.
    fn owned(&self, key: &str, policy: &CachePolicy) -> (Arc<Inner>, String, CachePolicy) {
        (self.inner.clone(), key.to_owned(), policy.clone())
    }
}

impl Inner {
    /// Reads Redis and counts the outcome. With `refresh_ahead`, a value with less than that left to
    /// live is stale.
    async fn get_from_redis<T: CacheValue>(
        &self,
        key: &str,
        policy: &CachePolicy,
        refresh_ahead: Option<Duration>,
    ) -> RedisLookup<T> {
        if self.invalidator.pending().contains(key) {
            return None;
        }
        let reply = match refresh_ahead {
            None => self.redis.get(key).await.map(|text| (text, None)),
            Some(_) => self.redis.get_with_ttl(key).await.map(|(text, pttl)| (text, Some(pttl))),
        };
        let (text, pttl) = match reply {
            Ok(reply) => reply,
            // The server is well; the key holds another type, such as a list.
            Err(Error::Rejected(error)) => {
                tracing::warn!(key, error, "this key is not a cached value");
                policy.counters.unreadable.increment();
                return None;
            }
            Err(_) => return None,
        };
        let counters = &policy.counters;
        Some(match decode(text.as_deref(), pttl, refresh_ahead.unwrap_or_default()) {
            Decoded::Missing => Decoded::Missing,
            Decoded::Null => {
                counters.null_hits.increment();
                Decoded::Null
            }
            Decoded::Fresh(value) => {
                counters.redis_hits.increment();
                Decoded::Fresh(Arc::new(CachedValue::new(value)))
            }
            Decoded::Stale(value) => {
                counters.redis_hits.increment();
                Decoded::Stale(Arc::new(CachedValue::new(value)))
            }
            Decoded::Unreadable => {
                tracing::warn!(key, "a cached value cannot be decoded; it is loaded again");
                counters.unreadable.increment();
                Decoded::Unreadable
            }
        })
    }

    async fn layered<T: CacheValue, E: Send + Sync + 'static>(
        self: &Arc<Self>,
        key: &str,
        policy: &CachePolicy,
        stamp: VersionStamp,
        loader: impl Loader<T, E>,
    ) -> ReadResult<T, E> {
        let hit = |value| Rebuilt { value, in_redis: true };
        let refresh_ahead = Some(policy.capped_refresh_ahead());
        let found = match self.get_from_redis(key, policy, refresh_ahead).await {
            Some(Decoded::Fresh(value)) => hit(Some(value)),
            Some(Decoded::Stale(value)) => {
                policy.counters.stale_served.increment();
                self.rebuild_in_background(key, policy, stamp, Format::Plain, loader);
                hit(Some(value))
            }
            Some(Decoded::Null) => hit(None),
            Some(Decoded::Missing | Decoded::Unreadable) => {
                self.rebuild(key, policy, Format::Plain, RebuildReason::Miss, &loader).await?
            }
            None => self.load_only(policy, &loader).await?,
        };
        if found.in_redis {
            self.local.put(key, stamp, found.value.as_ref(), policy.local_ttl);
        }
        Ok(found.value)
    }

    /// Rebuilds a stale value in the background, unless this process is rebuilding it already.
    fn rebuild_in_background<T: CacheValue, E: Send + Sync + 'static>(
        self: &Arc<Self>,
        key: &str,
        policy: &CachePolicy,
        stamp: VersionStamp,
        format: Format,
        loader: impl Loader<T, E>,
    ) {
        let Role::Leader(leader, _) = self.rebuilds.join::<T, E>(key, stamp) else { return };
        let (inner, key, policy) = (self.clone(), key.to_owned(), policy.clone());
        self.tasks.spawn(async move {
            let rebuilt = inner.rebuild(&key, &policy, format, RebuildReason::Stale, &loader).await;
            let outcome = rebuilt.map(|rebuilt| {
                // Logical expiry does not read memory.
                if rebuilt.in_redis && format == Format::Plain {
                    inner.local.put(&key, stamp, rebuilt.value.as_ref(), policy.local_ttl);
                }
                rebuilt.value
            });
            leader.complete(outcome);
        });
    }

    /// Runs `work` once for all concurrent callers, in a task: it goes on when they are dropped.
    async fn single_flight<T: CacheValue, E: Send + Sync + 'static, F>(
        &self,
        group: &Arc<SingleFlight>,
        key: &str,
        policy: &CachePolicy,
        stamp: VersionStamp,
        work: impl FnOnce() -> F,
    ) -> ReadResult<T, E>
    where
        F: Future<Output = ReadResult<T, E>> + Send + 'static,
    {
        let follower = match group.join(key, stamp) {
            Role::Follower(follower) => {
                policy.counters.shared.increment();
                follower
            }
            Role::Leader(leader, follower) => {
                let work = work();
                self.tasks.spawn(async move { leader.complete(work.await) });
                follower
            }
        };
        follower.wait().await
    }
}
