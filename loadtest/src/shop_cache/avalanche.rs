//! The avalanche: keys that were stored together expire together, and all of their readers reach the database in the same
//! second. The cure is a random share in each time to live (*jitter*).
//!
//! Each shop is read once through the service, and the times to live that the service gave are read from Redis. What would
//! have been without jitter is calculated: the end of each read, plus the exact time to live.

use std::time::{Duration, Instant};

use clap::{Args, value_parser};
use workload::Error;

use super::{
    reads::{Answer, Read, ReadStrategy, read_all},
    stage::{CONNECTIONS, Case, Stage},
};
use crate::report::{Check, Checked};

/// Jitter must bring the worst second's share down to this part of what it would be without.
const PART: f64 = 0.1;

/// The time to live around which the service spreads.
const TTL: Duration = Duration::from_secs(1800);

/// Options of an avalanche.
#[derive(Debug, Args)]
pub struct Options {
    /// Temporary shops, each with a key of its own
    #[arg(long, default_value_t = 10_000, value_parser = value_parser!(u64).range(1..=1_000_000))]
    keys: u64,
}

impl Case for Options {
    fn shops(&self) -> u64 {
        self.keys
    }

    async fn run(&self, stage: &Stage) -> Result<Checked, Error> {
        let mut readers = stage.connect(CONNECTIONS).await?;
        let begin = Instant::now();
        // Not by logical expiry, of which keys never leave.
        let (strategy, ids) = (ReadStrategy::Layered, stage.shops.clone());
        let reads = read_all(&mut readers, strategy, ids, None, stage.progress).await?;
        let expiries = stage.keys.expiries(&stage.shops, begin).await?;
        let expiry = |read: &Read| (read.ended - begin + TTL).as_millis() as i64;
        let exact: Vec<_> = reads.iter().map(expiry).collect();
        let found = reads.iter().filter(|read| read.answer == Answer::Shop).count() as u64;
        Ok(Checked {
            scenario: "cache avalanche",
            heading: format!("{} shops, each read once through {}.", self.keys, stage.urls()),
            figures: Vec::new(),
            notes: format!(
                "Without jitter each key would expire {} s after the end of its read.",
                TTL.as_secs()
            ),
            checks: check(self.keys, found, expiries, exact),
        })
    }
}

/// The most of these instants (milliseconds) that lie in one second, wherever it begins.
fn worst_second(mut instants: Vec<i64>) -> u64 {
    instants.sort_unstable();
    let (mut first, mut worst) = (0, 0);
    for (last, instant) in instants.iter().enumerate() {
        while instant - instants[first] >= 1000 {
            first += 1;
        }
        worst = worst.max(last + 1 - first);
    }
    worst as u64
}

/// Checks when the keys expire against when they would without jitter.
fn check(keys: u64, found: u64, jittered: Vec<i64>, exact: Vec<i64>) -> Vec<Check> {
    let with_ttl = jittered.len() as u64;
    let (with, without) = (worst_second(jittered) as f64, worst_second(exact) as f64);
    let most = PART * without;
    let percent = |count: f64| format!("{:.2} %", 100.0 * count / keys as f64);
    let what = "with jitter: in the worst second";
    let share = Check::new(what, percent(with), percent(most), with <= most);
    // One key in the worst second is the least there can be: too few keys cannot prove anything.
    let is_enough = most > 1.0;
    let (few, wanted) = (format!("{most:.1} keys"), "more than 1 key: use more --keys");
    vec![
        Check::new("shops served", found, keys, found == keys),
        Check::new("keys with a time to live", with_ttl, keys, with_ttl == keys),
        Check::shown("without jitter: in the worst second", percent(without)),
        Check::new("a tenth of the worst second without jitter", few, wanted, is_enough).needed(),
        if is_enough { share } else { share.needed() },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::CheckResult;

    #[test]
    fn the_worst_second_may_begin_anywhere() {
        assert_eq!(worst_second(Vec::new()), 0);
        assert_eq!(worst_second(vec![5_900, 100, 6_100, 6_899, 6_900, 20_000]), 3);
    }

    #[test]
    fn keys_that_expire_together_or_never_and_missing_shops_are_found() {
        // 10,000 keys, stored within two seconds: half of them in the worst one.
        let exact: Vec<i64> = (0..10_000).map(|key| key / 5).collect();
        let result = |jitter: i64, found: u64, with_ttl: usize| {
            let instants = exact.iter().zip(0..).map(|(at, key)| at + (key * 7919) % jitter);
            let expiries = instants.take(with_ttl).collect();
            CheckResult::worst(&check(10_000, found, expiries, exact.clone()))
        };
        assert_eq!(result(360_000, 10_000, 10_000), CheckResult::Shown);
        assert_eq!(result(10_000, 10_000, 10_000), CheckResult::Violation, "a tenth is too many");
        assert_eq!(result(1, 10_000, 10_000), CheckResult::Violation, "no jitter at all");
        assert_eq!(result(360_000, 9_999, 10_000), CheckResult::Violation);
        assert_eq!(result(360_000, 10_000, 9_999), CheckResult::Violation);
        let few = check(8, 8, vec![0; 8], vec![0; 8]);
        assert_eq!(CheckResult::worst(&few), CheckResult::Unclear);
    }
}
