//! The check of an avalanche: how many keys expire in the worst second, and whether jitter spreads them enough.

use serde::Serialize;

use crate::{reads::answer::Tally, scenario::check_result::CheckResult};

/// Jitter must bring the worst second's share down to this part of what it would be without.
const PART: f64 = 0.1;

/// When a set of keys expires.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Spread {
    /// Keys that expire at all.
    pub keys: u64,
    /// Keys in the worst second, wherever it begins.
    pub worst_second: u64,
    /// From the first expiry to the last, in milliseconds.
    pub span_ms: i64,
}

impl Spread {
    /// Share of the keys that expire in the worst second, 0…1.
    pub fn share(&self) -> f64 {
        self.worst_second as f64 / self.keys.max(1) as f64
    }
}

/// Finds the second, of all that begin anywhere, in which most of these instants lie (milliseconds).
pub fn spread(instants: &[i64]) -> Spread {
    let mut sorted = instants.to_vec();
    sorted.sort_unstable();
    let (mut first, mut worst) = (0, 0);
    for (last, instant) in sorted.iter().enumerate() {
        while instant - sorted[first] >= 1000 {
            first += 1;
        }
        worst = worst.max(last + 1 - first);
    }
    let span_ms = sorted.last().zip(sorted.first()).map_or(0, |(last, first)| last - first);
    Spread { keys: sorted.len() as u64, worst_second: worst as u64, span_ms }
}

/// Checks the measured spread against both ways without jitter; the milder of the two counts.
pub fn check(
    keys: u64,
    answers: &Tally,
    jittered: &Spread,
    exact_calculated: &Spread,
    exact_set: &Spread,
) -> CheckResult {
    if answers.found != keys {
        return CheckResult::Violation(format!("not all shops were served: {}", answers.text()));
    }
    let mut violations = Vec::new();
    if jittered.keys != keys {
        violations.push(format!("{} of {keys} keys have a time to live", jittered.keys));
    }
    if exact_set.keys != keys || exact_calculated.keys != keys {
        return CheckResult::Unclear("keys were lost while this tool worked on them".to_owned());
    }
    let most = PART * exact_calculated.share().min(exact_set.share());
    // One key in the worst second is the least there can be: too few keys cannot prove anything.
    if most * keys as f64 <= 1.0 {
        return CheckResult::Unclear(
            "too few keys, or read too slowly: use more --keys".to_owned(),
        );
    }
    if jittered.share() > most {
        violations.push(format!(
            "{:.2} % of the keys expire in the worst second, more than {:.2} %",
            100.0 * jittered.share(),
            100.0 * most
        ));
    }
    CheckResult::of(violations)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(found: u64) -> Tally {
        Tally { found, ..Tally::default() }
    }

    #[test]
    fn the_worst_second_may_begin_anywhere() {
        assert_eq!(spread(&[]), Spread::default());
        let spread = spread(&[5_900, 100, 6_100, 6_899, 6_900, 20_000]);
        assert_eq!(spread, Spread { keys: 6, worst_second: 3, span_ms: 19_900 });
        assert_eq!(spread.share(), 0.5);
    }

    #[test]
    fn keys_that_expire_together_are_found() {
        // 10,000 keys, stored within two seconds: half of them in the worst one.
        let stored: Vec<i64> = (0..10_000).map(|key| key / 5).collect();
        let exact = spread(&stored);
        let set = spread(&vec![0; 10_000]);
        assert_eq!((exact.worst_second, set.share()), (5_000, 1.0));
        let by = |jitter: i64| {
            let instants: Vec<_> =
                stored.iter().enumerate().map(|(i, at)| at + (i as i64 * 7919) % jitter).collect();
            check(10_000, &all(10_000), &spread(&instants), &exact, &set)
        };
        assert_eq!(by(360_000), CheckResult::Holds);
        assert!(by(10_000).is_violation(), "a tenth in one second is too many");
        assert!(by(1).is_violation(), "no jitter at all");
    }

    #[test]
    fn missing_times_to_live_and_missing_shops_are_found() {
        let (exact, wide) = (spread(&vec![0; 1000]), spread(&(0..1000).collect::<Vec<_>>()));
        let fewer = Spread { keys: 999, worst_second: 1, ..wide };
        assert!(check(1000, &all(1000), &fewer, &exact, &exact).is_violation());
        assert!(check(1000, &all(999), &fewer, &exact, &exact).is_violation());
        let few = Spread { keys: 8, worst_second: 8, span_ms: 0 };
        assert!(matches!(check(8, &all(8), &few, &few, &few), CheckResult::Unclear(_)));
    }
}
