//! Counters and duration histograms of the locks of one process, for metrics. Relaxed atomics: an
//! acquire and its release cost some ten additions and no lock. All of them only rise, except the
//! number of waiting calls.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::error::Error;
use crate::error::LostReason;
use crate::kind::Kind;

/// Upper bounds of the histogram buckets, in seconds.
const BOUNDS_S: [f64; 13] = [
    0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0,
];

/// A histogram while durations are recorded in it.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    /// The last one counts durations above every bound.
    buckets: [AtomicU64; BOUNDS_S.len() + 1],
    sum_us: AtomicU64,
}

/// A histogram of durations.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DurationHistogram {
    /// Each bucket's upper bound in seconds, and the number of durations up to it (cumulative).
    pub buckets: Vec<(f64, u64)>,
    /// Number of durations.
    pub count: u64,
    /// Their sum in seconds.
    pub seconds: f64,
}

impl Recorder {
    pub(crate) fn record(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let bucket = BOUNDS_S.partition_point(|bound| seconds > *bound);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.sum_us
            .fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    fn read(&self) -> DurationHistogram {
        let mut count = 0;
        let mut cumulative = self.buckets.iter().map(|bucket| {
            count += bucket.load(Relaxed);
            count
        });
        let buckets = BOUNDS_S.into_iter().zip(cumulative.by_ref()).collect();
        let count = cumulative.last().unwrap_or_default();
        DurationHistogram {
            buckets,
            count,
            seconds: self.sum_us.load(Relaxed) as f64 / 1e6,
        }
    }
}

/// A number that only rises.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

#[derive(Debug, Default)]
pub(crate) struct KindCounters {
    waited: Recorder,
    waiting: AtomicU64,
    busy: Counter,
    timed_out: Counter,
    failed: Counter,
    pub(crate) holds: Counter,
    pub(crate) held: Recorder,
    pub(crate) renewed: Counter,
    pub(crate) renewals_failed: Counter,
    lost: [Counter; 3],
}

/// Counts one waiting call until it is dropped.
pub(crate) struct Waiting<'a>(&'a KindCounters);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    by_kind: [KindCounters; Kind::ALL.len()],
    pub(crate) setnx: KindCounters,
}

/// The statistics of one kind of lock since the process started. A re-entry counts as an acquire. A call
/// whose future was dropped does not count.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LockStats {
    /// The kind: `reentrant`, `fenced`, `fair`, `read`, `write` or `setnx`.
    pub kind: &'static str,
    /// Calls that acquired the lock.
    pub acquired: u64,
    /// Calls that do not wait, and found the lock held.
    pub busy: u64,
    /// Calls that waited until their limit, and found the lock held.
    pub timed_out: u64,
    /// Calls that ended with an error.
    pub failed: u64,
    /// How long successful acquires took.
    pub waited: DurationHistogram,
    /// How long locks were held, from the first acquire to the last release or the loss.
    pub held: DurationHistogram,
    /// Locks that are held now, as far as this process knows.
    pub held_now: u64,
    /// Calls that wait now: their first try was refused or not answered, and they have not ended. A
    /// waiting multi-lock counts once.
    pub waiting_now: u64,
    /// Renewals of leases.
    pub renewed: u64,
    /// Renewals that failed; they are repeated.
    pub renewals_failed: u64,
    /// Locks that were lost while they were held.
    pub lost: Losses,
}

/// A number of losses for each [`LostReason`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Losses {
    /// [`LostReason::Expired`]
    pub expired: u64,
    /// [`LostReason::Taken`]
    pub taken: u64,
    /// [`LostReason::Unreachable`]
    pub unreachable: u64,
}

impl Losses {
    /// Their sum.
    pub fn total(&self) -> u64 {
        self.expired + self.taken + self.unreachable
    }
}

impl Counters {
    pub(crate) fn for_kind(&self, kind: Kind) -> &KindCounters {
        &self.by_kind[kind as usize]
    }

    /// The statistics of each [`Kind`] in its order, then those of the `SET NX` lock.
    pub(crate) fn read(&self) -> Vec<LockStats> {
        let by_kind = Kind::ALL.map(|kind| self.for_kind(kind).read(kind.name()));
        let setnx = self.setnx.read("setnx");
        by_kind.into_iter().chain([setnx]).collect()
    }
}

impl KindCounters {
    /// Count an acquire by its result. `waits` says whether the call may wait for another holder.
    pub(crate) fn acquired<T>(
        &self,
        result: &Result<Option<T>, Error>,
        took: Duration,
        waits: bool,
    ) {
        let refused = if waits { &self.timed_out } else { &self.busy };
        match result {
            Ok(Some(_)) => self.waited.record(took),
            Ok(None) => refused.add(),
            Err(_) => self.failed.add(),
        }
    }

    pub(crate) fn waiting(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Relaxed);
        Waiting(self)
    }

    pub(crate) fn hold_lost(&self, reason: LostReason) {
        self.lost[reason as usize].add();
    }

    fn read(&self, kind: &'static str) -> LockStats {
        let waited = self.waited.read();
        // Read before `holds`, so that a hold that starts meanwhile counts as held.
        let held = self.held.read();
        LockStats {
            kind,
            acquired: waited.count,
            busy: self.busy.get(),
            timed_out: self.timed_out.get(),
            failed: self.failed.get(),
            held_now: self.holds.get().saturating_sub(held.count),
            waiting_now: self.waiting.load(Relaxed),
            waited,
            held,
            renewed: self.renewed.get(),
            renewals_failed: self.renewals_failed.get(),
            lost: Losses {
                expired: self.lost[LostReason::Expired as usize].get(),
                taken: self.lost[LostReason::Taken as usize].get(),
                unreachable: self.lost[LostReason::Unreachable as usize].get(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative_and_holds_count_until_they_end() {
        let counters = KindCounters::default();
        let ms = Duration::from_millis;
        counters.acquired(&Ok(Some(())), ms(1), false);
        counters.acquired(&Ok(Some(())), ms(60_000), true);
        counters.acquired::<()>(&Ok(None), ms(1), false);
        counters.acquired::<()>(&Ok(None), ms(1), true);
        counters.acquired::<()>(&Err(Error::Closed), ms(1), true);
        counters.holds.add();
        counters.holds.add();
        counters.held.record(ms(20));
        let stats = counters.read("fair");
        let counts = [stats.acquired, stats.busy, stats.timed_out, stats.failed];
        assert_eq!(counts, [2, 1, 1, 1]);
        assert_eq!(stats.waited.buckets[1..3], [(0.0005, 0), (0.001, 1)]);
        assert_eq!(
            (stats.waited.buckets[12], stats.waited.count),
            ((30.0, 1), 2)
        );
        assert_eq!(stats.waited.seconds, 60.001);
        assert_eq!((stats.held_now, stats.held.count), (1, 1));
    }
}
