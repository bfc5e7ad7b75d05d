//! Invalidations that Redis did not confirm, and the task that delivers them as soon as it can.
//! While one is pending, this process reads that key from the source. There are never more of them
//! than keys changed while Redis was away.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::Inner;

/// The first pause between two attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// What is still to be delivered.
#[derive(Default)]
pub(super) struct Outbox {
    /// Each key with the number of its latest change: an older delivery does not settle it.
    pending: Mutex<Pending>,
    /// The number of keys, so that readers can see without a lock that there are none.
    len: AtomicUsize,
    added: Notify,
}

#[derive(Default)]
struct Pending {
    by_key: HashMap<String, u64>,
    changes: u64,
}

impl Outbox {
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// Whether `key` may still be old in Redis.
    pub(super) fn contains(&self, key: &str) -> bool {
        self.len() > 0 && self.pending().by_key.contains_key(key)
    }

    /// Deliver `key` later.
    pub(super) fn add(&self, key: &str) {
        let mut pending = self.pending();
        pending.changes += 1;
        let change = pending.changes;
        pending.by_key.insert(key.to_owned(), change);
        self.len.store(pending.by_key.len(), Ordering::Release);
        drop(pending);
        self.added.notify_one();
    }

    fn settle(&self, key: &str, change: u64) {
        let mut pending = self.pending();
        if pending.by_key.get(key) == Some(&change) {
            pending.by_key.remove(key);
            self.len.store(pending.by_key.len(), Ordering::Release);
        }
    }

    fn snapshot(&self) -> Vec<(String, u64)> {
        self.pending().by_key.iter().map(|(key, change)| (key.clone(), *change)).collect()
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Deliver until `stop`. `connected` cuts a pause short.
pub(super) async fn run(
    inner: Arc<Inner>,
    connected: Arc<Notify>,
    longest: Duration,
    stop: CancellationToken,
) {
    let outbox = &inner.outbox;
    let mut pause = FIRST_PAUSE;
    loop {
        if outbox.len() == 0 {
            pause = FIRST_PAUSE;
            tokio::select! {
                () = outbox.added.notified() => {}
                () = stop.cancelled() => return,
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = connected.notified() => {}
            () = stop.cancelled() => {
                deliver(&inner).await;
                return;
            }
        }
        pause = if deliver(&inner).await { FIRST_PAUSE } else { (pause * 2).min(longest) };
    }
}

/// Try all that is pending; at the first failure the rest waits. `true`: all delivered.
async fn deliver(inner: &Inner) -> bool {
    for (key, change) in inner.outbox.snapshot() {
        if !inner.announce(&key).await {
            return false;
        }
        inner.outbox.settle(&key, change);
        tracing::info!(key, "late invalidation delivered");
    }
    true
}
