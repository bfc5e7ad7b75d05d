//! Counters of purchases for `/metrics`: how many by strategy and outcome, and how long they took.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::model::Purchased;
use crate::error::Error;
use crate::histogram::Histogram;
use strategies::Strategy;

/// The labels of outcomes. A failure's label is its code; the codes that are not listed share the last label.
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
    /// In the order of [`Strategy::ALL`]; the last is of purchases whose sale was not found, or could not be read.
    by_strategy: [StrategyCounters; Strategy::ALL.len() + 1],
}

/// The counters of one strategy.
#[derive(Debug, Default)]
pub struct StrategyCounters {
    outcomes: [AtomicU64; OUTCOMES.len()],
    /// How long its purchases took.
    pub took: Histogram,
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
        let strategy_at = Strategy::ALL
            .iter()
            .position(|known| Some(*known) == strategy);
        let outcome_at = OUTCOMES.iter().position(|outcome| *outcome == label);
        let counters = &self.by_strategy[strategy_at.unwrap_or(Strategy::ALL.len())];
        counters.outcomes[outcome_at.unwrap_or(OUTCOMES.len() - 1)].fetch_add(1, Relaxed);
        counters.took.add_duration(took);
    }

    /// The counters of each strategy, by its name.
    pub fn by_strategy(&self) -> Vec<(&'static str, &StrategyCounters)> {
        let names = Strategy::ALL
            .into_iter()
            .map(Strategy::name)
            .chain(["unknown"]);
        names.zip(&self.by_strategy).collect()
    }
}

impl StrategyCounters {
    /// How often each outcome happened, also those that never did. Prometheus sees no increase in the first sample of a series,
    /// so if an outcome were printed from its first time on, an alert would miss that first time.
    pub fn outcomes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.outcomes.iter().map(|count| count.load(Relaxed));
        OUTCOMES.into_iter().zip(counts)
    }
}
