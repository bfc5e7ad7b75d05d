//! The avalanche: keys that were stored together expire together, and all of their readers reach the database in the same
//! second. The cure is a random share in each time to live (*jitter*).
//!
//! Temporary shops are put into the table, each is read once through the service, and the times to live that the service
//! gave are read from Redis. What would have been without jitter is made two ways, and the milder of them is compared with:
//! by calculation (each key's store instant, taken as the end of its read, plus the exact time to live), and for real (the
//! tool gives all keys that very time to live, in pipelines, and reads them again). Keys and shops are then removed.

use std::time::{Duration, Instant};

use clap::{Args, value_parser};
use workload::{Error, latency::Latency};

use super::{
    keys::RedisKeys,
    place::{CONNECTIONS, Place},
    reads::{self, Read, ReadStrategy, Tally, read_all},
};
use crate::report::{Check, Checked};

/// Jitter must bring the worst second's share down to this part of what it would be without.
const PART: f64 = 0.1;

/// The time to live around which the service spreads.
const TTL: Duration = Duration::from_secs(1800);

/// Options of an avalanche.
#[derive(Debug, Clone, Args)]
pub struct AvalancheOptions {
    /// Temporary shops, each with a key of its own
    #[arg(long, default_value_t = 10_000, value_parser = value_parser!(u64).range(1..=1_000_000))]
    keys: u64,
    /// The read strategy [default: the configured one]
    #[arg(long, value_name = "NAME")]
    read_strategy: Option<ReadStrategy>,
}

/// Measures, and removes what it made.
pub(super) async fn run(options: &AvalancheOptions, place: &Place) -> Result<Checked, Error> {
    if options.read_strategy == Some(ReadStrategy::LogicalExpiry) {
        return Err(Error::Usage(
            "keys with a logical expiry never leave: use another read strategy".into(),
        ));
    }
    let (table, keys) = place.open().await?;
    place.progress.say(&format!("making {} temporary shops", options.keys));
    let measuring = async {
        let ids = table.make_temporary(options.keys).await?;
        let measured = measure(options, place, &keys, &ids).await;
        Ok::<_, Error>((ids, measured))
    };
    let made = measuring.await;
    // Whatever happened: rows first, so that they are not cached again.
    table.remove_temporary().await?;
    let (ids, measured) = made?;
    keys.remove(&ids).await?;
    keys.drop_filters().await?;
    let (reads, spreads) = measured?;
    let latency = Latency::of(reads.iter().map(Read::latency));
    let answers = reads.iter().map(|read| &read.answer).collect();
    Ok(Checked {
        scenario: "cache avalanche",
        heading: format!(
            "{} shops, each read once through {} (read strategy: {}; p99 {:.1} ms).",
            options.keys,
            place.urls(),
            reads::name(options.read_strategy),
            latency.p99_ms
        ),
        figures: Vec::new(),
        notes: format!(
            "Without jitter the time to live is {} s, calculated from the end of each read, and for real.",
            TTL.as_secs()
        ),
        checks: check(ids.len() as u64, &answers, &spreads),
    })
}

/// All reads; and how keys expire with jitter, without by calculation, and without for real.
async fn measure(
    options: &AvalancheOptions,
    place: &Place,
    keys: &RedisKeys,
    ids: &[u64],
) -> Result<(Vec<Read>, [Spread; 3]), Error> {
    // The filter does not know the new rows; it is filled anew, with them.
    keys.drop_filters().await?;
    keys.remove(ids).await?;
    let mut readers = place.connect(CONNECTIONS).await?;
    let begin = Instant::now();
    let (each, progress) = (ids.to_vec(), (place.progress, "first reads"));
    let reads = read_all(&mut readers, options.read_strategy, each, None, progress).await?;
    let jittered = spread(&keys.expiries(ids, begin).await?);
    let expiry = |read: &Read| (read.ended - begin + TTL).as_millis() as i64;
    let calculated = spread(&reads.iter().map(expiry).collect::<Vec<_>>());
    keys.set_ttl(ids, TTL).await?;
    let set = spread(&keys.expiries(ids, begin).await?);
    Ok((reads, [jittered, calculated, set]))
}

/// When a set of keys expires.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Spread {
    /// Keys that expire at all.
    keys: u64,
    /// Keys in the worst second, wherever it begins.
    worst_second: u64,
}

impl Spread {
    /// Share of the keys that expire in the worst second, 0…1.
    fn share(&self) -> f64 {
        self.worst_second as f64 / self.keys.max(1) as f64
    }
}

/// Finds the second, of all that begin anywhere, in which most of these instants lie (milliseconds).
fn spread(instants: &[i64]) -> Spread {
    let mut sorted = instants.to_vec();
    sorted.sort_unstable();
    let (mut first, mut worst) = (0, 0);
    for (last, instant) in sorted.iter().enumerate() {
        while instant - sorted[first] >= 1000 {
            first += 1;
        }
        worst = worst.max(last + 1 - first);
    }
    Spread { keys: sorted.len() as u64, worst_second: worst as u64 }
}

/// Checks the measured spread against both ways without jitter; the milder of the two counts.
fn check(keys: u64, answers: &Tally, [jittered, calculated, set]: &[Spread; 3]) -> Vec<Check> {
    let most = PART * calculated.share().min(set.share());
    let percent = |share: f64| format!("{:.2} %", 100.0 * share);
    let touched = calculated.keys.min(set.keys);
    // One key in the worst second is the least there can be: too few keys cannot prove anything.
    let least = most * keys as f64;
    let (too_few, few) = ("more than 1 key: use more --keys", format!("{least:.1} keys"));
    let share = Check::new(
        "with jitter: in the worst second",
        percent(jittered.share()),
        percent(most),
        jittered.share() <= most,
    );
    vec![
        Check::new("shops served", answers.found(), keys, answers.found() == keys),
        Check::new("keys with a time to live", jittered.keys, keys, jittered.keys == keys),
        Check::shown(
            "without jitter, calculated: in the worst second",
            percent(calculated.share()),
        ),
        Check::shown("without jitter, for real: in the worst second", percent(set.share())),
        Check::new("keys still there afterwards", touched, keys, touched == keys).needed(),
        Check::new("a tenth of the worst second without jitter", few, too_few, least > 1.0)
            .needed(),
        if least > 1.0 { share } else { share.needed() },
    ]
}

#[cfg(test)]
mod tests {
    use super::{super::reads::Answer, *};
    use crate::report::CheckResult;

    /// The worst result, where so many shops were found.
    fn result(keys: u64, found: usize, spreads: [Spread; 3]) -> CheckResult {
        let shop = Answer::Found(1, "a".into());
        let checks = check(keys, &std::iter::repeat_n(&shop, found).collect(), &spreads);
        CheckResult::promised(&checks)
    }

    #[test]
    fn the_worst_second_may_begin_anywhere() {
        assert_eq!(spread(&[]), Spread::default());
        let spread = spread(&[5_900, 100, 6_100, 6_899, 6_900, 20_000]);
        assert_eq!(spread, Spread { keys: 6, worst_second: 3 });
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
            result(10_000, 10_000, [spread(&instants), exact, set])
        };
        assert_eq!(by(360_000), CheckResult::Holds);
        assert_eq!(by(10_000), CheckResult::Violation, "a tenth in one second is too many");
        assert_eq!(by(1), CheckResult::Violation, "no jitter at all");
    }

    #[test]
    fn missing_times_to_live_and_missing_shops_are_found() {
        let exact = spread(&vec![0; 1000]);
        let fewer = Spread { keys: 999, worst_second: 1 };
        assert_eq!(result(1000, 1000, [fewer, exact, exact]), CheckResult::Violation);
        let one = Spread { keys: 1000, ..fewer };
        assert_eq!(result(1000, 1000, [one, exact, exact]), CheckResult::Holds);
        assert_eq!(result(1000, 999, [one, exact, exact]), CheckResult::Violation);
        let few = Spread { keys: 8, worst_second: 8 };
        assert_eq!(result(8, 8, [few; 3]), CheckResult::Unclear);
    }
}
