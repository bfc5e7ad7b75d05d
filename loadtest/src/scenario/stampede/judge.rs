//! What each policy promises about an expiry, and how its rounds are held against it. Pure.
//!
//! What the tool and the machine cost by themselves is in each latency. It is measured by the same
//! burst on the warm key right before, and allowed for: a reader's wait is its latency less the
//! longest latency of the warm burst.

use std::time::Duration;

use serde::Serialize;

use crate::{reads::Way, scenario::standing::Standing};
use workload::latency::Latency;

/// What a reader with the mutex may wait beyond one load, in milliseconds.
pub const GRACE_MS: f64 = 50.0;
/// Loads that show a stampede, as a share of the readers: 100 of 2,000.
const SHOWN_SHARE: f64 = 0.05;
/// Statements of others that the witness may count during a round.
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
    /// Readers of the expired key who did not get their shop.
    pub failed: u64,
    /// Readers of the warm key who did not get theirs.
    pub failed_warm: u64,
}

impl Round {
    /// The longest wait, less what the same burst takes on the warm key, in milliseconds.
    pub fn wait_ms(&self) -> f64 {
        (self.expired.max_ms - self.warm.max_ms).max(0.0)
    }
}

/// Judges all rounds of one policy.
pub fn judge(way: Way, rounds: &[Round], slow_load: Duration) -> Standing {
    let slow_ms = slow_load.as_secs_f64() * 1e3;
    let most = rounds.iter().map(|round| round.loads).max().unwrap_or(0);
    if rounds.is_empty() {
        return Standing::Unclear("no round was run".to_owned());
    }
    // A policy that promises nothing about loads is shown, not judged.
    if matches!(way, Way::CacheAside | Way::NullCaching) {
        let readers = rounds[0].expired.count;
        let shown = most as f64 >= SHOWN_SHARE * readers as f64 && most > 1;
        let failed: u64 = rounds.iter().map(|round| round.failed).sum();
        let failed = if failed > 0 { format!(", {failed} readers failed") } else { String::new() };
        let what = format!("up to {most} loads for one expiry{failed}");
        return match (shown, way) {
            (true, _) => Standing::Shown(format!("stampede: {what}")),
            (false, Way::CacheAside) => {
                Standing::DidNotShow(format!("only {what}; a longer --slow-load shows more"))
            }
            (false, _) => Standing::Shown(what),
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
        match way {
            Way::Mutex if wait > load + GRACE_MS => {
                violation(format!("a reader waited {wait:.0} ms for a load of {load:.0} ms"));
            }
            // Answered only when the load could be done; or, as fast loads cannot tell, too late.
            Way::LogicalExpiry if slow_ms > 0.0 && round.expired.max_ms >= load => {
                let (max, warm) = (round.expired.max_ms, round.warm.max_ms);
                if wait <= GRACE_MS {
                    return Standing::Unclear(format!(
                        "the same burst takes {warm:.0} ms on the warm key: use a --slow-load above \
                         {:.0} ms",
                        2.0 * max
                    ));
                }
                violation(format!("a reader was answered only after {max:.0} ms, with the load"));
            }
            Way::LogicalExpiry if slow_ms == 0.0 && wait > GRACE_MS => {
                violation(format!("a reader waited {wait:.0} ms"));
            }
            _ => {}
        }
    }
    Standing::of(violations)
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
    fn violated(way: Way, bad: Round, says: &str) {
        let good = round(1, if way == Way::LogicalExpiry { 80.0 } else { 350.0 });
        assert_eq!(judge(way, &[good, good], SLOW), Standing::Holds, "{way}: the good round");
        let standing = judge(way, &[good, bad], SLOW);
        assert!(standing.is_violation(), "{way}: {standing:?}");
        assert!(standing.text().contains("round 2"), "{standing:?}");
        assert!(standing.text().contains(says), "{standing:?}");
    }

    #[test]
    fn more_or_fewer_loads_than_one_are_found() {
        for way in [Way::Mutex, Way::LogicalExpiry, Way::Layered] {
            violated(way, round(2, 80.0), "2 loads");
            violated(way, round(0, 80.0), "0 loads");
            let lying = Round { statements: 500, ..round(1, 80.0) };
            violated(way, lying, "500 statements");
            violated(way, Round { rebuilt: false, ..round(1, 80.0) }, "not rebuilt");
            violated(way, Round { failed: 3, ..round(1, 80.0) }, "3 readers failed");
            violated(way, Round { failed_warm: 1, ..round(1, 80.0) }, "1 on the warm key");
        }
    }

    #[test]
    fn a_reader_with_the_mutex_waits_for_one_load_and_50_ms() {
        // 60 ms are the burst's own, 301 the load's, 50 are granted.
        assert_eq!(judge(Way::Mutex, &[round(1, 410.0)], SLOW), Standing::Holds);
        violated(Way::Mutex, round(1, 412.0), "waited 352 ms");
    }

    #[test]
    fn nobody_waits_with_logical_expiry() {
        violated(Way::LogicalExpiry, round(1, 302.0), "with the load");
        let fast = |max| judge(Way::LogicalExpiry, &[round(1, max)], Duration::ZERO);
        assert_eq!(fast(100.0), Standing::Holds);
        assert!(fast(111.0).is_violation());
    }

    #[test]
    fn a_machine_too_slow_to_tell_is_not_blamed_on_the_service() {
        let slow = Round { warm: latency(290.0), ..round(1, 310.0) };
        let standing = judge(Way::LogicalExpiry, &[slow], SLOW);
        assert!(matches!(&standing, Standing::Unclear(what) if what.contains("--slow-load")));
    }

    #[test]
    fn a_stampede_must_show_where_nothing_prevents_it() {
        assert!(judge(Way::CacheAside, &[round(1, 80.0), round(700, 300.0)], SLOW).is_proof());
        let shy = judge(Way::CacheAside, &[round(99, 80.0)], SLOW);
        assert!(matches!(shy, Standing::DidNotShow(_)), "{shy:?}");
        assert!(judge(Way::NullCaching, &[round(2, 80.0)], SLOW).is_proof());
        assert!(!judge(Way::Mutex, &[], SLOW).is_proof());
    }
}
