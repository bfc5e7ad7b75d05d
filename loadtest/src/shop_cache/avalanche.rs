//! The avalanche: keys that were stored together expire together, and all of their readers reach the database in the same
//! second. The cure is a random share in each time to live (*jitter*).
//!
//! Each shop is read once through the service, and the times to live that the service gave are read from Redis.

use workload::Error;

use super::{
    reads::{Answer, Strategy, answered},
    stage::Stage,
};
use crate::report::{Check, Checked};

/// Not logical expiry: its keys never leave Redis.
const STRATEGY: Strategy = Some("layered");
/// Of so many keys one may expire in the worst second; evenly spread over six minutes, one of 360 would.
const PART: usize = 20;

pub async fn run(stage: &Stage) -> Result<Checked, Error> {
    let (reads, _) = stage.read_once(STRATEGY, stage.shops.clone()).await?;
    let expiries = stage.keys.expiries(&stage.shops).await?;
    let mut checks = check(expiries, reads.len());
    checks.push(answered(&reads, &[Answer::Shop]));
    Ok(Checked {
        scenario: "cache avalanche",
        heading: format!(
            "{} shops, each read once through {}.",
            reads.len(),
            stage.urls()
        ),
        figures: Vec::new(),
        notes: "Without jitter keys that are stored within a second expire within a second."
            .to_owned(),
        checks,
    })
}

/// The most of these instants (milliseconds) that lie in one second, wherever it begins.
fn worst_second(mut instants: Vec<i64>) -> usize {
    instants.sort_unstable();
    let mut worst = 0;
    for (index, first) in instants.iter().enumerate() {
        let end = instants.partition_point(|instant| instant - first < 1000);
        worst = worst.max(end - index);
    }
    worst
}

/// Checks when `keys` keys expire, in milliseconds; those that never do are missing in `expiries`.
fn check(expiries: Vec<i64>, keys: usize) -> Vec<Check> {
    let with_ttl = expiries.len();
    let worst = worst_second(expiries);
    let limit = keys / PART;
    vec![
        Check::new("keys with a time to live", with_ttl, keys, with_ttl == keys),
        Check::new(
            "keys that expire in the worst second",
            worst,
            limit,
            worst <= limit,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::CheckResult;

    #[test]
    fn the_worst_second_may_begin_anywhere() {
        assert_eq!(worst_second(Vec::new()), 0);
        let instants = vec![5_900, 100, 6_100, 6_899, 6_900, 20_000];
        assert_eq!(worst_second(instants), 3);
    }

    #[test]
    fn keys_that_expire_together_or_never_are_found() {
        use CheckResult::{Holds, Violation};
        for (distance_ms, with_ttl, expected) in [
            (360, 1000, Holds),
            (20, 1000, Holds),
            (19, 1000, Violation),
            (0, 1000, Violation),
            (360, 999, Violation),
        ] {
            let expiries = (0..with_ttl).map(|key| key * distance_ms).collect();
            let found = CheckResult::worst(&check(expiries, 1000));
            assert_eq!(found, expected, "{distance_ms} ms apart, {with_ttl} keys");
        }
    }
}
