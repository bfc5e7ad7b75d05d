//! A circuit breaker: after several failures in a row Redis is no longer asked, so that no reader
//! waits for a time-out that is already known. It knows nothing of caching.
//!
//! The pattern is Nygard's ("Release It!", 2007) with one change: the trial call of the half-open
//! state is a PING by a background task, so that no reader ever is the guinea pig, and recovery
//! needs no traffic.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tokio::sync::Notify;

use super::stats::Count;

/// Open (failing) or closed (working).
pub(super) struct Breaker {
    /// Failures in a row that open it.
    threshold: u32,
    /// Failures since the last success.
    failures: AtomicU32,
    open: AtomicBool,
    /// Wakes the prober.
    opened: Notify,
}

impl Breaker {
    pub(super) fn new(threshold: u32) -> Self {
        Self {
            threshold: threshold.max(1),
            failures: AtomicU32::new(0),
            open: AtomicBool::new(false),
            opened: Notify::new(),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// A command was answered. This does not close an open breaker: the answer may be an old one.
    pub(super) fn succeeded(&self) {
        // Loading first keeps the cache line shared between cores on the path of every command.
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// A command was not answered.
    pub(super) fn failed(&self, opened: &Count) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if failures >= self.threshold && !self.open.swap(true, Ordering::Relaxed) {
            opened.up();
            self.opened.notify_one();
        }
    }

    /// Redis answered a probe.
    pub(super) fn close(&self) {
        self.failures.store(0, Ordering::Relaxed);
        self.open.store(false, Ordering::Relaxed);
    }

    /// Wait until it is open.
    pub(super) async fn until_open(&self) {
        while !self.is_open() {
            self.opened.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_after_failures_in_a_row_only() {
        let (breaker, opened) = (Breaker::new(3), Count::default());
        for _ in 0..5 {
            breaker.failed(&opened);
            breaker.failed(&opened);
            breaker.succeeded();
        }
        assert!(!breaker.is_open());
        for _ in 0..4 {
            breaker.failed(&opened);
        }
        assert!(breaker.is_open());
        assert_eq!(opened.get(), 1, "opened once");
        breaker.succeeded();
        assert!(breaker.is_open(), "an old answer does not close it");
        breaker.close();
        assert!(!breaker.is_open());
    }
}
