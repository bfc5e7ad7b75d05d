//! A circuit breaker: after several failures in a row Redis is not used, so that no reader waits
//! for a timeout that is to be expected.
//!
//! The pattern is Nygard's ("Release It!", 2007) with one change: the trial call of the half-open
//! state is a PING by a background task, so that no reader has to risk the timeout, and recovery
//! needs no traffic.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tokio::sync::Notify;

use crate::stats::Counter;

/// Failures in a row that open it.
const THRESHOLD: u32 = 5;

/// Open (Redis is not used) or closed (it is).
#[derive(Default)]
pub(crate) struct CircuitBreaker {
    /// Failures since the last success.
    failures: AtomicU32,
    open: AtomicBool,
    /// Wakes the task that probes Redis.
    opened: Notify,
}

impl CircuitBreaker {
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// Records that a command was answered. This does not close an open breaker: the answer may be
    /// to a command sent before Redis failed.
    pub(crate) fn record_success(&self) {
        // The load first: an unconditional store on every command would make the cores contend for
        // the cache line.
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// Records that a command failed. Returns whether that opened the breaker.
    pub(crate) fn record_failure(&self, opened: &Counter) -> bool {
        let failures = self
            .failures
            .fetch_add(1, Ordering::Relaxed)
            .saturating_add(1);
        let opens = failures >= THRESHOLD && !self.open.swap(true, Ordering::Relaxed);
        if opens {
            opened.increment();
            self.opened.notify_one();
        }
        opens
    }

    /// Closes it: Redis answered a probe.
    pub(crate) fn close(&self) {
        self.failures.store(0, Ordering::Relaxed);
        self.open.store(false, Ordering::Relaxed);
    }

    /// Waits until it is open.
    pub(crate) async fn wait_until_open(&self) {
        while !self.is_open() {
            self.opened.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_in_a_row_open_it_and_only_a_probe_closes_it() {
        let breaker = CircuitBreaker::default();
        let opened = Counter::default();
        for _ in 0..3 {
            (1..THRESHOLD).for_each(|_| assert!(!breaker.record_failure(&opened)));
            breaker.record_success();
        }
        assert!(!breaker.is_open());
        for _ in 0..=THRESHOLD {
            breaker.record_failure(&opened);
        }
        assert!(breaker.is_open());
        assert_eq!(opened.get(), 1, "opened once");
        breaker.record_success();
        assert!(breaker.is_open(), "a late answer does not close it");
        breaker.close();
        assert!(!breaker.is_open());
        for _ in 0..THRESHOLD {
            breaker.record_failure(&opened);
        }
        breaker.close();
        breaker.record_failure(&opened);
        assert!(!breaker.is_open(), "failures of the last time count");
    }
}
