//! Loading many keys before anybody asks for them.

use futures_util::{StreamExt, stream};

use super::rebuild::Purpose;
use super::value::Format;
use super::{Cache, Kind, Load, Policy, Value};

/// What a warm-up came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WarmUp {
    /// Keys that Redis now has a value for, whether it had one before or not.
    pub present: u64,
    /// Keys that do not exist.
    pub absent: u64,
    /// Keys that could not be loaded.
    pub failed: u64,
}

impl Cache {
    /// Load those of `keys` that Redis has no value for, `at_once` at a time, in the format that
    /// `kind` reads best. Problem: a cold start sends everybody to the source. Cost: that many
    /// loads; keep `at_once` well below [`CacheConfig::max_loads`](super::CacheConfig), which
    /// readers need as well.
    pub async fn warm_up<T: Value, E, L: Load<T, E>>(
        &self,
        kind: Kind,
        policy: &Policy,
        keys: impl IntoIterator<Item = (String, L)>,
        at_once: usize,
    ) -> WarmUp {
        let format = match kind {
            Kind::LogicalExpiry => Format::Logical,
            Kind::CacheAside | Kind::NullCaching | Kind::Mutex | Kind::Layered => Format::Plain,
        };
        let inner = &self.inner;
        let mut work = stream::iter(keys)
            .map(async |(key, load)| {
                inner.rebuild(&key, policy, format, Purpose::Miss, &load).await
            })
            .buffer_unordered(at_once.max(1));
        let mut done = WarmUp::default();
        while let Some(loaded) = work.next().await {
            match loaded {
                Ok(loaded) if loaded.value.is_some() => done.present += 1,
                Ok(_) => done.absent += 1,
                Err(_) => done.failed += 1,
            }
        }
        done
    }
}
