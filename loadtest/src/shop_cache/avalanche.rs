//! The avalanche: keys that were stored together expire together, and all of their readers reach the database in the same
//! second. The cure is a random share in each time to live (*jitter*).
//!
//! Each shop is read once through the service, and the times to live that the service gave are read from Redis. What would
//! happen without jitter is known: each key would expire the same time after the end of its read.

use std::time::Instant;

use clap::Args;
use workload::Error;

use super::{
    reads::{Answer, ReadStrategy, answered, read_all},
    stage::{BYPASSED, CONNECTIONS, Case, Counts, Stage},
};
use crate::report::{Check, Checked};

/// With jitter the worst second's share must be at most this part of what it would be without.
const PART: f64 = 0.1;

/// An avalanche has no options of its own.
#[derive(Debug, Args)]
pub struct Options;

impl Case for Options {
    const SHOPS: u64 = 10_000;

    async fn run(&self, stage: &Stage) -> Result<Checked, Error> {
        let mut readers = stage.connect(CONNECTIONS).await?;
        let begin = Instant::now();
        // Not logical expiry: its keys never leave Redis.
        let strategy = ReadStrategy::Layered;
        let ids = stage.shops.clone();
        let progress = stage.progress;
        let stop = &stage.stop;
        let reading = read_all(&mut readers, strategy, ids, None, progress, stop);
        let (reads, counts) = stage.counting(reading).await?;
        let expiries = stage.keys.expiries(&stage.shops).await?;
        let exact_expiries = reads
            .iter()
            .map(|read| (read.ended - begin).as_millis() as i64)
            .collect();
        let mut checks = check(expiries, exact_expiries, counts);
        checks.push(answered("answers", &reads, &[Answer::Shop]));
        Ok(Checked {
            scenario: "cache avalanche",
            heading: format!(
                "{} shops, each read once through {}.",
                Self::SHOPS,
                stage.urls()
            ),
            figures: Vec::new(),
            notes: "Without jitter each key would expire 30 minutes after the end of its read."
                .to_owned(),
            checks,
        })
    }
}

/// The most of these instants (milliseconds) that lie in one second, wherever it begins.
fn worst_second(mut instants: Vec<i64>) -> usize {
    instants.sort_unstable();
    let mut first = 0;
    let mut worst = 0;
    for (last, instant) in instants.iter().enumerate() {
        while instant - instants[first] >= 1000 {
            first += 1;
        }
        worst = worst.max(last + 1 - first);
    }
    worst
}

/// Compares when the keys expire with when they would without jitter. Only the distances within each list count, so the two
/// may have different origins. A shop that Redis did not store in time has no key.
fn check(jittered: Vec<i64>, exact: Vec<i64>, counts: Counts) -> Vec<Check> {
    let with_ttl = jittered.len();
    let keys = exact.len();
    let with = worst_second(jittered) as f64;
    let without = worst_second(exact) as f64;
    let limit = PART * without;
    let percent = |count: f64| format!("{:.2} %", 100.0 * count / keys as f64);
    let what = "with jitter: in the worst second";
    let checks = vec![
        Check::new("keys with a time to live", with_ttl, keys, with_ttl == keys),
        Check::shown("without jitter: in the worst second", percent(without)),
        Check::new(what, percent(with), percent(limit), with <= limit),
    ];
    counts.with_redis_in_time(BYPASSED, checks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::CheckResult;

    #[test]
    fn the_worst_second_may_begin_anywhere() {
        assert_eq!(worst_second(Vec::new()), 0);
        assert_eq!(
            worst_second(vec![5_900, 100, 6_100, 6_899, 6_900, 20_000]),
            3
        );
    }

    #[test]
    fn keys_that_expire_together_or_never_are_found() {
        // 10,000 keys, stored within two seconds: half of them in the worst one.
        let exact: Vec<i64> = (0..10_000).map(|key| key / 5).collect();
        let result_with = |jitter: i64, with_ttl: usize, bypassed: u64| {
            let counts = Counts {
                bypassed,
                ..Counts::default()
            };
            let instants = exact
                .iter()
                .zip(0..)
                .map(|(instant, key)| instant + (key * 7919) % jitter);
            let instants = instants.take(with_ttl).collect();
            CheckResult::worst(&check(instants, exact.clone(), counts))
        };
        let result = |jitter: i64, with_ttl: usize| result_with(jitter, with_ttl, 0);
        assert_eq!(result(360_000, 10_000), CheckResult::Shown);
        assert_eq!(
            result(10_000, 10_000),
            CheckResult::Violation,
            "a tenth is too many"
        );
        assert_eq!(
            result(1, 10_000),
            CheckResult::Violation,
            "no jitter at all"
        );
        assert_eq!(result(360_000, 9_999), CheckResult::Violation);
        // Redis was too slow to store some shops; the reads that went past it are counted.
        assert_eq!(result_with(360_000, 9_999, 1), CheckResult::Unclear);
        assert_eq!(result_with(360_000, 9_857, 600), CheckResult::Unclear);
        assert_eq!(result_with(360_000, 10_000, 1), CheckResult::Shown);
    }
}
