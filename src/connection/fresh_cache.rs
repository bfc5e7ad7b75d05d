//! [`FreshCache`]: values that are fresh for a moment and read once, however many ask. The first caller reads, those who
//! come meanwhile wait for its result, an error too, and those who come in the moment after get the same value.
//!
//! To invalidate is to forget the key's entry: a read that is under way ends in an entry that nobody finds any more.

use std::convert::Infallible;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use quick_cache::sync::Cache;
use tokio::time::Instant;

/// Values that are fresh for a moment. Cheap to clone.
#[derive(Clone)]
pub struct FreshCache<K, V, E> {
    entries: Arc<Cache<K, Arc<Entry<V, E>>>>,
    fresh_for: Duration,
}

struct Entry<V, E> {
    last: RwLock<Option<Reading<V, E>>>,
    /// Held by the caller that reads.
    turn: tokio::sync::Mutex<()>,
}

struct Reading<V, E> {
    result: Result<V, E>,
    begun: Instant,
    ended: Instant,
}

impl<V: Clone, E: Clone> Entry<V, E> {
    /// The last value, where it is fresh.
    fn fresh(&self, fresh_for: Duration) -> Option<V> {
        let last = self.last.read();
        let Reading { result, begun, .. } = last.as_ref()?;
        result
            .as_ref()
            .ok()
            .filter(|_| begun.elapsed() < fresh_for)
            .cloned()
    }

    /// The last result, if a caller that asked at `asked_at` may use it: it is fresh, or its read ended since then.
    fn usable(&self, asked_at: Instant, fresh_for: Duration) -> Option<Result<V, E>> {
        self.fresh(fresh_for).map(Ok).or_else(|| {
            let last = self.last.read();
            last.as_ref()
                .filter(|last| last.ended >= asked_at)
                .map(|last| last.result.clone())
        })
    }
}

impl<K: Clone + Eq + Hash, V: Clone, E: Clone> FreshCache<K, V, E> {
    /// Values are fresh for this long, from the moment their read began; those of about `capacity` keys are kept.
    pub fn new(fresh_for: Duration, capacity: usize) -> Self {
        FreshCache {
            entries: Arc::new(Cache::new(capacity)),
            fresh_for,
        }
    }

    /// The value of `key`, if a fresh one is kept.
    pub fn fresh(&self, key: &K) -> Option<V> {
        self.entries.get(key)?.fresh(self.fresh_for)
    }

    /// The value of `key`: a fresh one, that of a read under way, or what `load` returns. Errors are shared by those who
    /// wait, and not kept. Waits for no more than the read under way and `load`. If the future is dropped, the next of
    /// those who wait reads.
    pub async fn get(&self, key: K, load: impl AsyncFnOnce() -> Result<V, E>) -> Result<V, E> {
        let asked_at = Instant::now();
        let new = || {
            Arc::new(Entry {
                last: RwLock::new(None),
                turn: Default::default(),
            })
        };
        let Ok(entry) = self
            .entries
            .get_or_insert_with(&key, || Ok::<_, Infallible>(new()));
        let _turn = entry.turn.lock().await;
        if let Some(result) = entry.usable(asked_at, self.fresh_for) {
            return result;
        }
        let begun = Instant::now();
        let result = load().await;
        let reading = Reading {
            result: result.clone(),
            begun,
            ended: Instant::now(),
        };
        *entry.last.write() = Some(reading);
        result
    }

    /// Forgets what is kept under `key`: a caller that asks from now on gets a value whose read begins from now on.
    pub fn invalidate(&self, key: &K) {
        self.entries.remove(key);
    }

    /// As [`FreshCache::invalidate`], but only where the last value fulfils the condition, or none is there yet.
    pub fn invalidate_if(&self, key: &K, condition: impl FnOnce(&V) -> bool) {
        self.entries
            .remove_if(key, |entry| match &*entry.last.read() {
                Some(Reading {
                    result: Ok(value), ..
                }) => condition(value),
                _ => true,
            });
    }

    /// Forgets everything.
    pub fn invalidate_all(&self) {
        self.entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Notify;

    use super::*;

    type Numbers = FreshCache<u32, u32, &'static str>;

    fn numbers() -> Numbers {
        Numbers::new(Duration::from_secs(3600), 64)
    }

    #[tokio::test]
    async fn what_was_read_before_an_invalidation_is_not_given_after_it() {
        let invalidations: [fn(&Numbers); 2] =
            [|cache| cache.invalidate(&1), |cache| cache.invalidate_all()];
        for invalidate in invalidations {
            let cache = numbers();
            let go = Notify::new();
            let mut first = Box::pin(cache.get(1, async || {
                go.notified().await;
                Ok(1)
            }));
            assert!(futures_util::poll!(&mut first).is_pending());
            invalidate(&cache);
            go.notify_one();
            assert_eq!(first.await, Ok(1), "asked before");
            assert_eq!(cache.fresh(&1), None);
            assert_eq!(cache.get(1, async || Ok(2)).await, Ok(2));
        }
    }

    #[tokio::test]
    async fn a_reader_that_is_dropped_leaves_the_read_to_the_next() {
        let cache = numbers();
        let mut first = Box::pin(cache.get(1, std::future::pending));
        assert!(futures_util::poll!(&mut first).is_pending());
        let mut second = Box::pin(cache.get(1, async || Ok(2)));
        assert!(futures_util::poll!(&mut second).is_pending());
        drop(first);
        assert_eq!(second.await, Ok(2));
    }
}
