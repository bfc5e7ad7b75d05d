//! What the locks of one process did: relaxed atomics, read as plain numbers. An acquire and its release cost
//! some ten of them, and no lock. Counters only ever rise.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::kind::Kind;
use super::{Error, LostReason};

/// Upper bounds of the histograms, in seconds: from a command on a quiet server to a forgotten lock.
pub const BOUNDS_S: [f64; 13] =
    [0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];

/// Ways to lock in Redis, as they are counted: the family in the order of [`Kind`], then `SET NX`.
const KINDS: [&str; 6] = ["reentrant", "fenced", "fair", "read", "write", "setnx"];

/// Times up to each bound.
#[derive(Debug, Default)]
pub(super) struct Times {
    /// The last one holds what took longer than every bound.
    up_to: [AtomicU64; BOUNDS_S.len() + 1],
    sum_us: AtomicU64,
}

/// A histogram, read.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Histogram {
    /// Each bound in seconds, and how many took at most so long.
    pub within: Vec<(f64, u64)>,
    /// How many there were.
    pub count: u64,
    /// Seconds they took in all.
    pub seconds: f64,
}

impl Times {
    fn add(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let bucket = BOUNDS_S.partition_point(|bound| seconds > *bound);
        self.up_to[bucket].fetch_add(1, Relaxed);
        self.sum_us.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    fn read(&self) -> Histogram {
        let mut count = 0;
        let mut up_to = self.up_to.iter().map(|bucket| {
            count += bucket.load(Relaxed);
            count
        });
        let within = BOUNDS_S.into_iter().zip(up_to.by_ref()).collect();
        let all = up_to.last().unwrap_or_default();
        Histogram { within, count: all, seconds: self.sum_us.load(Relaxed) as f64 / 1e6 }
    }
}

/// What is counted of one way to lock.
#[derive(Debug, Default)]
pub(super) struct OfKind {
    waited: Times,
    busy: AtomicU64,
    timed_out: AtomicU64,
    failed: AtomicU64,
    begun: AtomicU64,
    held: Times,
    renewed: AtomicU64,
    renewals_failed: AtomicU64,
    lost: [AtomicU64; 3],
}

/// The counters of all ways.
#[derive(Debug, Default)]
pub(super) struct Counters([OfKind; KINDS.len()]);

/// What one way to lock did.
#[derive(Debug, Clone, PartialEq)]
pub struct Stats {
    /// Which: `reentrant`, `fenced`, `fair`, `read`, `write`, `setnx` or `process`.
    pub kind: &'static str,
    /// Acquires that ended, by outcome: `acquired`; `busy`, if not to wait; `timed_out`, after waiting;
    /// `failed`. Re-entries count, and calls whose future was dropped do not.
    pub acquires: [(&'static str, u64); 4],
    /// How long it took until the lock was had.
    pub waited: Histogram,
    /// How long it was held, from the first acquire to the last release or the loss.
    pub held: Histogram,
    /// Held now, as far as this process knows.
    pub held_now: u64,
    /// Renewals that were confirmed, and those that got no answer and are tried again.
    pub renewals: [(&'static str, u64); 2],
    /// Locks that could not be believed any more while they were held, by reason.
    pub losses: [(&'static str, u64); 3],
}

impl Counters {
    pub(super) fn of(&self, kind: Kind) -> &OfKind {
        &self.0[kind as usize]
    }

    pub(super) fn of_setnx(&self) -> &OfKind {
        &self.0[5]
    }

    /// Of each way, in the order of [`KINDS`].
    pub(super) fn read(&self) -> Vec<Stats> {
        KINDS.iter().zip(&self.0).map(|(kind, of)| of.read(kind)).collect()
    }
}

impl OfKind {
    /// How an acquire ended that took so long; `waits`: whether it would wait for another holder.
    pub(super) fn acquired<T>(&self, end: &Result<Option<T>, Error>, took: Duration, waits: bool) {
        let refused = if waits { &self.timed_out } else { &self.busy };
        match end {
            Ok(Some(_)) => self.waited.add(took),
            Ok(None) => up(refused),
            Err(_) => up(&self.failed),
        }
    }

    pub(super) fn begun(&self) {
        up(&self.begun);
    }

    pub(super) fn ended(&self, held: Duration) {
        self.held.add(held);
    }

    pub(super) fn renewed(&self) {
        up(&self.renewed);
    }

    pub(super) fn renewal_failed(&self) {
        up(&self.renewals_failed);
    }

    pub(super) fn lost(&self, reason: LostReason) {
        up(&self.lost[reason as usize]);
    }

    pub(super) fn read(&self, kind: &'static str) -> Stats {
        let number = |cell: &AtomicU64| cell.load(Relaxed);
        let waited = self.waited.read();
        // Those that ended first: what begins meanwhile is held.
        let held = self.held.read();
        Stats {
            kind,
            acquires: [
                ("acquired", waited.count),
                ("busy", number(&self.busy)),
                ("timed_out", number(&self.timed_out)),
                ("failed", number(&self.failed)),
            ],
            held_now: number(&self.begun).saturating_sub(held.count),
            waited,
            held,
            renewals: [("ok", number(&self.renewed)), ("failed", number(&self.renewals_failed))],
            losses: [LostReason::Expired, LostReason::Taken, LostReason::Unreachable].map(
                |reason| {
                    let name = match reason {
                        LostReason::Expired => "expired",
                        LostReason::Taken => "taken",
                        LostReason::Unreachable => "unreachable",
                    };
                    (name, number(&self.lost[reason as usize]))
                },
            ),
        }
    }
}

fn up(cell: &AtomicU64) {
    cell.fetch_add(1, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_is_counted_under_its_own_name() {
        let counters = Counters::default();
        let kinds = [Kind::Reentrant, Kind::Fenced, Kind::Fair, Kind::Read, Kind::Write];
        for kind in kinds {
            counters.of(kind).renewed();
        }
        counters.of_setnx().renewed();
        counters.of(Kind::Fair).lost(LostReason::Unreachable);
        let stats = counters.read();
        let names = kinds.iter().map(ToString::to_string).chain(["setnx".to_owned()]);
        for (stats, name) in stats.iter().zip(names) {
            assert_eq!((stats.kind, stats.renewals[0]), (name.as_str(), ("ok", 1)));
        }
        assert_eq!(stats[2].losses, [("expired", 0), ("taken", 0), ("unreachable", 1)]);
    }

    #[test]
    fn times_are_counted_up_to_bounds_and_holds_until_they_end() {
        let of = OfKind::default();
        let ms = Duration::from_millis;
        of.acquired(&Ok(Some(())), ms(1), false);
        of.acquired(&Ok(Some(())), ms(60_000), true);
        of.acquired::<()>(&Ok(None), ms(1), false);
        of.acquired::<()>(&Ok(None), ms(1), true);
        of.acquired::<()>(&Err(Error::Closed), ms(1), true);
        of.begun();
        of.begun();
        of.ended(ms(20));
        let stats = of.read("fair");
        let counts: Vec<u64> = stats.acquires.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [2, 1, 1, 1]);
        assert_eq!(stats.waited.within[1..3], [(0.0005, 0), (0.001, 1)]);
        assert_eq!((stats.waited.within[12], stats.waited.count), ((30.0, 1), 2));
        assert_eq!(stats.waited.seconds, 60.001);
        assert_eq!((stats.held_now, stats.held.count), (1, 1));
    }
}
