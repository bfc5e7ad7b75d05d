//! Warm-up: loading many keys before they are read.

use futures_util::{StreamExt, stream};

use crate::cache::Cache;
use crate::encoding::Format;
use crate::policy::CachePolicy;
use crate::read::load::Loader;
use crate::read::rebuild::RebuildReason;
use crate::strategy::ReadStrategy;
use crate::value::CacheValue;

/// The result of a warm-up, in keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WarmUpReport {
    /// Keys that now have a value in Redis, loaded or there before.
    pub present: u64,
    /// Keys that do not exist.
    pub absent: u64,
    /// Keys that could not be loaded.
    pub failed: u64,
}

impl Cache {
    /// Loads those of `keys` that have no value in Redis, `concurrency` at a time, in the format that
    /// `strategy` reads best. Keep `concurrency` well below
    /// [`max_concurrent_loads`](crate::CacheConfig::max_concurrent_loads), which readers need as well.
    ///
    /// A failed load is counted in the report. If the future is dropped, loads under way are
    /// cancelled and their mutexes expire.
    pub async fn warm_up<T: CacheValue, E, L: Loader<T, E>>(
        &self,
        strategy: ReadStrategy,
        policy: &CachePolicy,
        keys: impl IntoIterator<Item = (String, L)>,
        concurrency: usize,
    ) -> WarmUpReport {
        let format = match strategy {
            ReadStrategy::LogicalExpiry => Format::LogicalExpiry,
            ReadStrategy::CacheAside
            | ReadStrategy::NullCaching
            | ReadStrategy::Mutex
            | ReadStrategy::Layered => Format::Plain,
        };
        let inner = &self.inner;
        let mut loads = stream::iter(keys)
            .map(async |(key, loader)| {
                inner.rebuild(&key, policy, format, RebuildReason::Miss, &loader).await
            })
            .buffer_unordered(concurrency.max(1));
        let mut report = WarmUpReport::default();
        while let Some(loaded) = loads.next().await {
            match loaded {
                Ok(loaded) if loaded.value.is_some() => report.present += 1,
                Ok(_) => report.absent += 1,
                Err(_) => report.failed += 1,
            }
        }
        report
    }
}
