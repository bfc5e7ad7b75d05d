//! Counters of purchases for `/metrics`: how many by strategy and outcome, and how long they took. A purchase whose
//! client hung up got no answer and is not counted.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::model::Purchased;
use crate::error::Error;
use ladder::Strategy;

/// Outcomes, as labels; failures under their codes, those that are not listed under the last.
const OUTCOMES: [&str; 13] = [
    "ORDERED",
    "PENDING",
    "SOLD_OUT",
    "ALREADY_ORDERED",
    "LOCK_BUSY",
    "STOCK_CHANGED",
    "SALE_NOT_BEGUN",
    "SALE_ENDED",
    "OVERLOADED",
    "UNAVAILABLE",
    "OUTCOME_UNKNOWN",
    "INTERNAL",
    "OTHER",
];

/// Upper bounds of the histogram, milliseconds.
const BOUNDS_MS: [u64; 12] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000];

/// Counters; all only rise.
#[derive(Debug, Default)]
pub struct PurchaseStats {
    by_strategy: [StrategyCounters; Strategy::ALL.len()],
    /// Of purchases whose sale could not be read.
    unknown: StrategyCounters,
}

#[derive(Debug, Default)]
struct StrategyCounters {
    outcomes: [AtomicU64; OUTCOMES.len()],
    /// The last one holds what took longer than every bound.
    took: [AtomicU64; BOUNDS_MS.len() + 1],
    took_us: AtomicU64,
}

/// The counts of one strategy.
#[derive(Debug, PartialEq)]
pub struct Counts {
    /// Outcomes that happened, and how often.
    pub outcomes: Vec<(&'static str, u64)>,
    /// Each bound in seconds, and how many took at most that long.
    pub within: Vec<(f64, u64)>,
    /// How many there were, and seconds they took in all.
    pub total: (u64, f64),
}

impl PurchaseStats {
    pub(super) fn count(
        &self,
        strategy: Option<Strategy>,
        outcome: &Result<Purchased, Error>,
        took: Duration,
    ) {
        let label = match outcome {
            Ok(Purchased::Committed(_)) => "ORDERED",
            Ok(Purchased::Pending(_)) => "PENDING",
            Err(error) => error.code(),
        };
        let of = strategy.map_or(&self.unknown, |strategy| &self.by_strategy[strategy as usize]);
        let known = OUTCOMES.iter().position(|outcome| *outcome == label);
        of.outcomes[known.unwrap_or(OUTCOMES.len() - 1)].fetch_add(1, Relaxed);
        let bucket = BOUNDS_MS.partition_point(|bound| took > Duration::from_millis(*bound));
        of.took[bucket].fetch_add(1, Relaxed);
        of.took_us.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    /// The counts of each strategy that had a purchase, by its name.
    pub fn by_strategy(&self) -> impl Iterator<Item = (&'static str, Counts)> {
        let known = Strategy::ALL.into_iter().map(Strategy::name).zip(&self.by_strategy);
        let all = known.chain([("unknown", &self.unknown)]);
        all.map(|(name, of)| (name, of.counts())).filter(|(_, counts)| counts.total.0 > 0)
    }
}

impl StrategyCounters {
    fn counts(&self) -> Counts {
        let named = OUTCOMES.into_iter().zip(&self.outcomes);
        let outcomes = named
            .map(|(name, count)| (name, count.load(Relaxed)))
            .filter(|(_, count)| *count > 0)
            .collect();
        let mut sum = 0;
        let mut up_to = self.took.iter().map(|count| {
            sum += count.load(Relaxed);
            sum
        });
        let within = BOUNDS_MS.iter().map(|ms| *ms as f64 / 1e3).zip(up_to.by_ref()).collect();
        let all = up_to.last().unwrap_or_default();
        Counts { outcomes, within, total: (all, self.took_us.load(Relaxed) as f64 / 1e6) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_counted_by_strategy_and_times_up_to_bounds() {
        let stats = PurchaseStats::default();
        let ms = Duration::from_millis;
        stats.count(Some(Strategy::GroupCommit), &Ok(Purchased::Committed(1)), ms(1));
        stats.count(Some(Strategy::GroupCommit), &Ok(Purchased::Committed(2)), ms(30));
        stats.count(Some(Strategy::GroupCommit), &Err(Error::SoldOut), ms(9_000));
        stats.count(Some(Strategy::Stream), &Err(Error::Unauthorized), ms(0));
        stats.count(None, &Err(Error::Unavailable("the database")), ms(0));
        let counts: Vec<_> = stats.by_strategy().collect();
        assert_eq!(counts[0].0, "stream");
        assert_eq!(counts[0].1.outcomes, [("OTHER", 1)]);
        assert_eq!(
            (counts[2].0, &counts[2].1.outcomes[..]),
            ("unknown", &[("UNAVAILABLE", 1)][..])
        );
        let (strategy, counts) = &counts[1];
        assert_eq!(*strategy, "group-commit");
        assert_eq!(counts.outcomes, [("ORDERED", 2), ("SOLD_OUT", 1)]);
        assert_eq!(&counts.within[..2], [(0.001, 1), (0.002, 1)]);
        assert_eq!((counts.within[5], counts.within[11]), ((0.05, 2), (5.0, 2)));
        assert_eq!(counts.total, (3, 9.031));
    }

    #[test]
    fn a_strategys_number_is_its_position_in_the_ladder() {
        for (at, strategy) in Strategy::ALL.into_iter().enumerate() {
            assert_eq!(strategy as usize, at);
        }
    }
}
