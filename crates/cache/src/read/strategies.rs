//! The read strategies, each a few lines over the same parts.

use std::time::Duration;

use futures_util::FutureExt;

use crate::cache::Cache;
use crate::connection::redis_commands::unique_token;
use crate::encoding::{Decoded, Format, decode};
use crate::error::Error;
use crate::policy::CachePolicy;
use crate::read::rebuild::{Reading, RebuildReason, Rebuilt};
use crate::strategy::ReadStrategy;
use crate::value::{CacheValue, CachedValue, ReadResult};

impl Cache {
    /// Reads `key` with `strategy`. `None` means that it does not exist, never that it is not cached.
    ///
    /// Apart from the two strategies without a mutex, loads run in tasks of their own: a reader that
    /// is dropped does not cancel a load that others wait for.
    ///
    /// `loader` loads the value from its source, usually with one query: `move || { let store =
    /// store.clone(); async move { store.find(id).await } }`. It is called again only if what it loaded
    /// was invalidated meanwhile. Dropping its future must cancel the load.
    ///
    /// # Errors
    /// If the value has to be loaded and cannot be. A failing Redis is not an error.
    pub async fn read<T: CacheValue, E: Send + Sync + 'static, F>(
        &self,
        strategy: ReadStrategy,
        key: &str,
        policy: &CachePolicy,
        loader: impl Fn() -> F + Send + Sync + 'static,
    ) -> ReadResult<T, E>
    where
        F: Future<Output = Result<Option<T>, E>> + Send + 'static,
    {
        if strategy == ReadStrategy::Layered
            && let Some(value) = self.inner.local.get(key)
        {
            policy.counters.local_hits.increment();
            // A task that only ever hits memory must let others run.
            tokio::task::coop::consume_budget().await;
            return Ok(value);
        }
        let reading = Reading {
            inner: self.inner.clone(),
            key: key.to_owned(),
            policy: policy.clone(),
            stamp: self.inner.local.stamp(key),
            loader: Box::new(move || loader().boxed()),
        };
        match strategy {
            ReadStrategy::CacheAside => reading.aside(false).await,
            ReadStrategy::NullCaching => reading.aside(true).await,
            ReadStrategy::Mutex => reading.coordinated(Format::Plain).await,
            ReadStrategy::LogicalExpiry => reading.coordinated(Format::LogicalExpiry).await,
            ReadStrategy::Layered => reading.shared(Reading::layered).await,
        }
    }
}

impl<T: CacheValue, E: Send + Sync + 'static> Reading<T, E> {
    /// Without a mutex: every reader that finds nothing loads.
    async fn aside(self, cache_nulls: bool) -> ReadResult<T, E> {
        let replace = match self.get_from_redis(Duration::ZERO).await {
            Some(Decoded::Fresh(value) | Decoded::Expiring(value)) => {
                return Ok(Some(CachedValue::new(value)));
            }
            Some(Decoded::Null) => return Ok(None),
            Some(Decoded::Missing) => false,
            Some(Decoded::Expired(_) | Decoded::Unreadable) => true,
            None => return self.load_shared(None).await,
        };
        if self.is_filtered().await {
            return Ok(None);
        }
        let reply = self
            .inner
            .redis
            .lease_get(&self.key, &unique_token(), None, replace)
            .await;
        let Ok(reply) = reply else {
            return self.load_shared(None).await;
        };
        let value = self
            .inner
            .load_limiter
            .run(&self.policy, &self.loader)
            .await?;
        if let Some(lease) = reply.lease
            && (value.is_some() || cache_nulls)
        {
            // If the value is refused, another reader was first, or the key was invalidated.
            self.store(&lease, Format::Plain, value.as_ref(), None)
                .await;
        }
        Ok(value.map(CachedValue::new))
    }

    /// Redis, then one load per process and cluster. In the format with a logical expiry, an expired value is served, and
    /// rebuilt in the background.
    async fn coordinated(self, format: Format) -> ReadResult<T, E> {
        match self.get_from_redis(Duration::ZERO).await {
            Some(Decoded::Fresh(value) | Decoded::Expiring(value)) => {
                Ok(Some(CachedValue::new(value)))
            }
            Some(Decoded::Expired(value)) if format == Format::LogicalExpiry => {
                self.rebuild_in_background(format);
                Ok(Some(CachedValue::new(value)))
            }
            Some(Decoded::Null) => Ok(None),
            Some(Decoded::Missing | Decoded::Expired(_) | Decoded::Unreadable) => {
                self.load_shared(Some(format)).await
            }
            None => self.load_shared(None).await,
        }
    }

    /// Reads Redis, loads if the value is not there, and keeps the outcome in memory; once for all concurrent readers.
    async fn layered(self) -> ReadResult<T, E> {
        let found = self
            .get_from_redis(self.policy.capped_refresh_ahead())
            .await;
        let is_expiring = matches!(found, Some(Decoded::Expiring(_)));
        let found = match found {
            Some(Decoded::Fresh(value) | Decoded::Expiring(value)) => {
                Rebuilt::new(Some(value), true)
            }
            Some(Decoded::Null) => Rebuilt::new(None, true),
            Some(Decoded::Missing | Decoded::Expired(_) | Decoded::Unreadable) => {
                self.rebuild(Format::Plain, RebuildReason::Miss).await?
            }
            None => self.load_only().await?,
        };
        self.keep_in_memory(&found);
        if is_expiring {
            self.rebuild_in_background(Format::Plain);
        }
        Ok(found.value)
    }

    /// Loads once per process and cluster, and stores the value in `format`. `None` says that Redis cannot be used: then
    /// each process loads once, and stores nothing.
    async fn load_shared(self, format: Option<Format>) -> ReadResult<T, E> {
        self.shared(|reading| async move {
            let loaded = match format {
                Some(format) => reading.rebuild(format, RebuildReason::Miss).await?,
                None => reading.load_only().await?,
            };
            Ok(loaded.value)
        })
        .await
    }

    /// Runs `work` once for all concurrent readers, in a task: it goes on when they are dropped.
    async fn shared<F>(self, work: impl FnOnce(Self) -> F) -> ReadResult<T, E>
    where
        F: Future<Output = ReadResult<T, E>> + Send + 'static,
    {
        let inner = self.inner.clone();
        let (leader, follower) = inner.reads.join(&self.key, self.stamp);
        if let Some(leader) = leader {
            let work = work(self);
            inner
                .tasks
                .spawn(async move { leader.complete(work.await) });
        } else {
            self.policy.counters.shared.increment();
        }
        follower.wait().await
    }

    /// Rebuilds a stale value, which is served meanwhile, unless this process is rebuilding it already.
    fn rebuild_in_background(self, format: Format) {
        self.policy.counters.stale_served.increment();
        let inner = self.inner.clone();
        let (Some(leader), _) = inner.rebuilds.join::<T, E>(&self.key, self.stamp) else {
            return;
        };
        inner.tasks.spawn(async move {
            let rebuilt = self.rebuild(format, RebuildReason::Stale).await;
            // Logical expiry does not read memory.
            if format == Format::Plain
                && let Ok(rebuilt) = &rebuilt
            {
                self.keep_in_memory(rebuilt);
            }
            leader.complete(rebuilt.map(|rebuilt| rebuilt.value));
        });
    }

    fn keep_in_memory(&self, found: &Rebuilt<T>) {
        if found.in_redis {
            let ttl = self.policy.local_ttl;
            self.inner
                .local
                .put(&self.key, self.stamp, found.value.as_ref(), ttl);
        }
    }

    /// Reads Redis and counts the outcome; `None`: Redis cannot be used. A value with less than `refresh_ahead` left to live
    /// is expiring.
    async fn get_from_redis(&self, refresh_ahead: Duration) -> Option<Decoded<T>> {
        let redis = &self.inner.redis;
        let key = &self.key;
        let counters = &self.policy.counters;
        if self.inner.invalidator.pending.contains(key) {
            return None;
        }
        let reply = if refresh_ahead.is_zero() {
            redis.get(key).await.map(|text| (text, -1))
        } else {
            redis.get_with_ttl(key).await
        };
        let (text, pttl) = match reply {
            Ok(reply) => reply,
            // The server is well; the key holds another type, such as a list.
            Err(Error::Rejected(error)) => {
                tracing::warn!(key, error, "this key is not a cached value");
                counters.unreadable.increment();
                return None;
            }
            Err(_) => return None,
        };
        let found = decode(text.as_deref(), pttl, refresh_ahead);
        match &found {
            Decoded::Missing => {}
            Decoded::Null => counters.null_hits.increment(),
            Decoded::Fresh(_) | Decoded::Expiring(_) | Decoded::Expired(_) => {
                counters.redis_hits.increment();
            }
            Decoded::Unreadable => {
                tracing::warn!(key, "a cached value cannot be decoded; it is loaded again");
                counters.unreadable.increment();
            }
        }
        Some(found)
    }
}
