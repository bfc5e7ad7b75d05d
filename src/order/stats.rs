//! Counters of purchases for `/metrics`: how many by strategy and outcome, and how long they took. A purchase whose
//! client hung up got no answer and is not counted.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::model::Purchased;
use crate::error::Error;
use crate::histogram::{Counted, Durations};
use workload::ladder::Strategy;

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
    took: Durations,
}

/// The counts of one strategy.
#[derive(Debug, PartialEq)]
pub struct Counts {
    /// Outcomes that happened, and how often.
    pub outcomes: Vec<(&'static str, u64)>,
    /// Seconds they took.
    pub took: Counted<f64>,
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
        of.took.add(took);
    }

    /// The counts of each strategy that had a purchase, by its name.
    pub fn by_strategy(&self) -> impl Iterator<Item = (&'static str, Counts)> {
        let known = Strategy::ALL.into_iter().map(Strategy::name).zip(&self.by_strategy);
        let all = known.chain([("unknown", &self.unknown)]);
        all.map(|(name, of)| (name, of.counts())).filter(|(_, counts)| counts.took.count > 0)
    }
}

impl StrategyCounters {
    fn counts(&self) -> Counts {
        let named = OUTCOMES.into_iter().zip(&self.outcomes);
        let outcomes = named
            .map(|(name, count)| (name, count.load(Relaxed)))
            .filter(|(_, count)| *count > 0)
            .collect();
        Counts { outcomes, took: self.took.counted() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_and_times_are_counted_by_strategy() {
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
        assert_eq!((counts.took.count, counts.took.sum), (3, 9.031));
    }

    #[test]
    fn a_strategys_number_is_its_position_in_the_ladder() {
        for (at, strategy) in Strategy::ALL.into_iter().enumerate() {
            assert_eq!(strategy as usize, at);
        }
    }
}
