//! The check of a stampede: what each read strategy guarantees about an expiry.
//!
//! What the tool and the machine cost by themselves is in each latency. It is measured by the same
//! burst on the warm key right before, and allowed for: a reader's wait is its latency less the
//! longest latency of the warm burst.

use std::time::Duration;

use serde::Serialize;

use crate::{reads::ReadStrategy, scenario::check_result::CheckResult};
use workload::latency::Latency;

/// What a reader with the mutex may wait beyond one load, in milliseconds.
pub const GRACE_MS: f64 = 50.0;
/// Loads that show a stampede, as a share of the readers: 100 of 2,000.
const SHOWN_SHARE: f64 = 0.05;
/// Statements of other clients that the database may count during a round.
const OTHERS: u64 = 20;

/// One expiry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Round {
    /// Database loads, by the service's metric, over all instances.
    pub loads: u64,
    /// Prepared statements the database executed meanwhile, of whatever kind.
    pub statements: u64,
    /// Whether the key was fresh again afterwards.
    pub rebuilt: bool,
    /// From the beginning of the burst to the earliest possible end of a load, in milliseconds.
    pub load_ms: f64,
    /// The burst on the warm key.
    pub warm: Latency,
    /// The burst on the expired key.
    pub expired: Latency,
    /// Readers of the expired key that did not get the shop.
    pub failed: u64,
    /// Readers of the warm key that did not get it.
    pub failed_warm: u64,
}

impl Round {
    /// The longest wait, less what the same burst takes on the warm key, in milliseconds.
    pub fn wait_ms(&self) -> f64 {
        (self.expired.max_ms - self.warm.max_ms).max(0.0)
    }
}

/// Checks all rounds of one read strategy.
pub fn check(strategy: ReadStrategy, rounds: &[Round], slow_load: Duration) -> CheckResult {
    let slow_ms = slow_load.as_secs_f64() * 1e3;
    let most = rounds.iter().map(|round| round.loads).max().unwrap_or(0);
    if rounds.is_empty() {
        return CheckResult::Unclear("no round was run".to_owned());
    }
    // A read strategy that guarantees nothing about loads is shown, not checked.
    if matches!(strategy, ReadStrategy::CacheAside | ReadStrategy::NullCaching) {
        let readers = rounds[0].expired.count;
        let shown = most as f64 >= SHOWN_SHARE * readers as f64 && most > 1;
        let failed: u64 = rounds.iter().map(|round| round.failed).sum();
        let failed = if failed > 0 { format!(", {failed} readers failed") } else { String::new() };
        let what = format!("up to {most} loads for one expiry{failed}");
        return match (shown, strategy) {
            (true, _) => CheckResult::Shown(format!("stampede: {what}")),
            (false, ReadStrategy::CacheAside) => {
                CheckResult::DidNotShow(format!("only {what}; a longer --slow-load shows more"))
            }
            (false, _) => CheckResult::Shown(what),
        };
    }
    let mut violations = Vec::new();
    for (number, round) in rounds.iter().enumerate() {
        let mut violation = |text: String| violations.push(format!("round {}: {text}", number + 1));
        if round.loads != 1 {
            violation(format!("{} loads", round.loads));
        }
        if round.statements > round.loads + OTHERS {
            violation(format!("the database executed {} statements", round.statements));
        }
        if !round.rebuilt {
            violation("the key was not rebuilt".to_owned());
        }
        if round.failed + round.failed_warm > 0 {
            let (failed, warm) = (round.failed, round.failed_warm);
            violation(format!("{failed} readers failed, {warm} on the warm key"));
        }
        let (wait, load) = (round.wait_ms(), round.load_ms);
        match strategy {
            ReadStrategy::Mutex if wait > load + GRACE_MS => {
                violation(format!("a reader waited {wait:.0} ms for a load of {load:.0} ms"));
            }
            // Answered only when the load could be done; or, as fast loads cannot tell, too late.
            ReadStrategy::LogicalExpiry if slow_ms > 0.0 && round.expired.max_ms >= load => {
                let (max, warm) = (round.expired.max_ms, round.warm.max_ms);
                if wait <= GRACE_MS {
                    return CheckResult::Unclear(format!(
                        "the same burst takes {warm:.0} ms on the warm key: use a --slow-load above \
                         {:.0} ms",
                        2.0 * max
                    ));
                }
                violation(format!("a reader was answered only after {max:.0} ms, with the load"));
            }
            ReadStrategy::LogicalExpiry if slow_ms == 0.0 && wait > GRACE_MS => {
                violation(format!("a reader waited {wait:.0} ms"));
            }
            _ => {}
        }
    }
    CheckResult::of(violations)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Duration = Duration::from_millis(300);

    fn latency(max_ms: f64) -> Latency {
        Latency { count: 2000, max_ms, ..Latency::default() }
    }

    /// One load of 301 ms; the warm burst takes 60 ms.
    fn round(loads: u64, max_ms: f64) -> Round {
        Round {
            loads,
            statements: loads,
            rebuilt: true,
            load_ms: 301.0,
            warm: latency(60.0),
            expired: latency(max_ms),
            ..Round::default()
        }
    }

    #[track_caller]
    fn violated(strategy: ReadStrategy, bad: Round, says: &str) {
        let good = round(1, if strategy == ReadStrategy::LogicalExpiry { 80.0 } else { 350.0 });
        assert_eq!(
            check(strategy, &[good, good], SLOW),
            CheckResult::Holds,
            "{strategy}: the good round"
        );
        let result = check(strategy, &[good, bad], SLOW);
        assert!(result.is_violation(), "{strategy}: {result:?}");
        assert!(result.text().contains("round 2"), "{result:?}");
        assert!(result.text().contains(says), "{result:?}");
    }

    #[test]
    fn more_or_fewer_loads_than_one_are_found() {
        for strategy in [ReadStrategy::Mutex, ReadStrategy::LogicalExpiry, ReadStrategy::Layered] {
            violated(strategy, round(2, 80.0), "2 loads");
            violated(strategy, round(0, 80.0), "0 loads");
            let lying = Round { statements: 500, ..round(1, 80.0) };
            violated(strategy, lying, "500 statements");
            violated(strategy, Round { rebuilt: false, ..round(1, 80.0) }, "not rebuilt");
            violated(strategy, Round { failed: 3, ..round(1, 80.0) }, "3 readers failed");
            violated(strategy, Round { failed_warm: 1, ..round(1, 80.0) }, "1 on the warm key");
        }
    }

    #[test]
    fn a_reader_with_the_mutex_waits_for_one_load_and_50_ms() {
        // 60 ms are the burst's own, 301 the load's, 50 are granted.
        assert_eq!(check(ReadStrategy::Mutex, &[round(1, 410.0)], SLOW), CheckResult::Holds);
        violated(ReadStrategy::Mutex, round(1, 412.0), "waited 352 ms");
    }

    #[test]
    fn nobody_waits_with_logical_expiry() {
        violated(ReadStrategy::LogicalExpiry, round(1, 302.0), "with the load");
        let fast = |max| check(ReadStrategy::LogicalExpiry, &[round(1, max)], Duration::ZERO);
        assert_eq!(fast(100.0), CheckResult::Holds);
        assert!(fast(111.0).is_violation());
    }

    #[test]
    fn a_machine_too_slow_to_tell_is_not_blamed_on_the_service() {
        let slow = Round { warm: latency(290.0), ..round(1, 310.0) };
        let result = check(ReadStrategy::LogicalExpiry, &[slow], SLOW);
        assert!(matches!(&result, CheckResult::Unclear(what) if what.contains("--slow-load")));
    }

    #[test]
    fn a_stampede_must_show_where_nothing_prevents_it() {
        assert!(
            check(ReadStrategy::CacheAside, &[round(1, 80.0), round(700, 300.0)], SLOW).is_proof()
        );
        let shy = check(ReadStrategy::CacheAside, &[round(99, 80.0)], SLOW);
        assert!(matches!(shy, CheckResult::DidNotShow(_)), "{shy:?}");
        assert!(check(ReadStrategy::NullCaching, &[round(2, 80.0)], SLOW).is_proof());
        assert!(!check(ReadStrategy::Mutex, &[], SLOW).is_proof());
    }
}
