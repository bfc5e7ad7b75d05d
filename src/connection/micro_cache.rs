//! Micro-caching with request coalescing: a value is read at most once in a moment, however many ask for it. The first
//! caller reads, those who come meanwhile wait for its result, an error too, and those who come in the moment after get
//! the same value.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::sync::Mutex;

/// Keys that are kept at most. Beyond them, keys whose moment is over are dropped; then values are read uncached.
const CAPACITY: usize = 1024;

/// Values that are valid for a moment. Cheap to clone.
pub struct MicroCache<K, V, E> {
    entries: Arc<Mutex<Entries<K, V, E>>>,
    fresh_for: Duration,
}

impl<K, V, E> Clone for MicroCache<K, V, E> {
    fn clone(&self) -> Self {
        MicroCache { entries: self.entries.clone(), fresh_for: self.fresh_for }
    }
}

type Entries<K, V, E> = HashMap<K, Arc<Entry<V, E>>>;

/// Locked by the caller that reads.
type Entry<V, E> = tokio::sync::Mutex<Option<Loaded<V, E>>>;

struct Loaded<V, E> {
    result: Result<V, E>,
    begun: Instant,
    ended: Instant,
}

impl<V, E> Loaded<V, E> {
    fn is_fresh(&self, fresh_for: Duration) -> bool {
        self.result.is_ok() && self.begun.elapsed() < fresh_for
    }
}

impl<K: Clone + Eq + Hash, V: Clone, E: Clone> MicroCache<K, V, E> {
    /// Values are valid for this long, from the moment their read began.
    pub fn new(fresh_for: Duration) -> Self {
        MicroCache { entries: Arc::default(), fresh_for }
    }

    /// The value of `key`: a fresh one, that of a read under way, or what `load` returns. Errors are shared by those who
    /// wait, and not kept. Waits for no more than the read under way and `load`; dropped, it leaves the read to the next
    /// of those who wait.
    pub async fn get(&self, key: K, load: impl AsyncFnOnce() -> Result<V, E>) -> Result<V, E> {
        let asked = Instant::now();
        let entry = self.entry(key);
        let mut loaded = entry.lock().await;
        if let Some(loaded) = &*loaded
            && (loaded.ended >= asked || loaded.is_fresh(self.fresh_for))
        {
            return loaded.result.clone();
        }
        let begun = Instant::now();
        let result = load().await;
        *loaded = Some(Loaded { result: result.clone(), begun, ended: Instant::now() });
        result
    }

    /// Forgets what is kept under `key`: who asks from now on gets a value that is read from now on.
    pub fn invalidate(&self, key: &K) {
        self.entries.lock().remove(key);
    }

    /// Forgets everything.
    pub fn invalidate_all(&self) {
        self.entries.lock().clear();
    }

    fn entry(&self, key: K) -> Arc<Entry<V, E>> {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get(&key) {
            return entry.clone();
        }
        if entries.len() >= CAPACITY {
            entries.retain(|_, entry| {
                Arc::strong_count(entry) > 1
                    || entry.try_lock().is_ok_and(|loaded| {
                        loaded.as_ref().is_some_and(|loaded| loaded.is_fresh(self.fresh_for))
                    })
            });
        }
        let entry = Arc::new(Entry::new(None));
        if entries.len() < CAPACITY {
            entries.insert(key, entry.clone());
        }
        entry
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures_util::future::join_all;
    use shuttle::future::block_on;
    use tokio::sync::Notify;

    use super::*;
    use crate::sync::explored::once;

    const LONG: Duration = Duration::from_secs(3600);

    type Numbers = MicroCache<u32, u32, &'static str>;

    #[test]
    fn those_who_come_during_a_read_share_its_result_even_an_error() {
        once(|| {
            block_on(async {
                for outcome in [Ok(7), Err("away")] {
                    let (cache, reads, go) =
                        (Numbers::new(Duration::ZERO), AtomicU32::new(0), Notify::new());
                    let ask = || {
                        cache.get(1, async || {
                            reads.fetch_add(1, Ordering::SeqCst);
                            go.notified().await;
                            outcome
                        })
                    };
                    let all = join_all((0..50).map(|_| ask()));
                    let ((), results) = tokio::join!(
                        async {
                            tokio::task::yield_now().await;
                            go.notify_one();
                        },
                        all
                    );
                    assert!(results.iter().all(|result| *result == outcome));
                    assert_eq!(reads.load(Ordering::SeqCst), 1);
                    // Nothing is fresh for no time, and an error never.
                    go.notify_one();
                    assert_eq!(ask().await, outcome);
                    assert_eq!(reads.load(Ordering::SeqCst), 2);
                }
            });
        });
    }

    #[test]
    fn a_fresh_value_is_kept_until_it_is_invalidated() {
        once(|| {
            block_on(async {
                let cache = Numbers::new(LONG);
                assert_eq!(cache.get(1, async || Ok(1)).await, Ok(1));
                assert_eq!(cache.get(1, async || Ok(2)).await, Ok(1));
                assert_eq!(cache.get(2, async || Ok(3)).await, Ok(3));
                cache.invalidate(&1);
                assert_eq!(cache.get(1, async || Ok(4)).await, Ok(4));
                cache.invalidate_all();
                assert_eq!(cache.get(2, async || Err("away")).await, Err("away"));
                assert_eq!(cache.get(2, async || Ok(5)).await, Ok(5));
            });
        });
    }

    #[test]
    fn a_reader_that_is_dropped_leaves_the_read_to_the_next() {
        once(|| {
            block_on(async {
                let cache = Numbers::new(LONG);
                let mut first = Box::pin(cache.get(1, std::future::pending));
                assert!(futures_util::poll!(&mut first).is_pending());
                let mut second = Box::pin(cache.get(1, async || Ok(2)));
                assert!(futures_util::poll!(&mut second).is_pending());
                drop(first);
                assert_eq!(second.await, Ok(2));
            });
        });
    }

    #[test]
    fn keys_are_bounded() {
        once(|| {
            block_on(async {
                for fresh_for in [Duration::ZERO, LONG] {
                    let cache = Numbers::new(fresh_for);
                    for key in 0..3 * u32::try_from(CAPACITY).expect("it is small") {
                        assert_eq!(cache.get(key, async || Ok(key)).await, Ok(key));
                    }
                    assert!(cache.entries.lock().len() <= CAPACITY);
                }
            });
        });
    }
}

#[cfg(test)]
mod interleavings;
