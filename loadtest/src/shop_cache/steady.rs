//! Steady reads: a mixed hit ratio, second by second, so that something can be broken meanwhile.
//!
//! Ids are drawn by Zipf's law: the hot ones are answered from memory, the others from Redis. Some keys are removed from
//! Redis all the time (as if they had expired), so that there are loads, and some requests are for ids that do not exist.
//! Requests are due at fixed times whatever the service does, and latency counts from then.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use clap::{Args, value_parser};
use rand::Rng;
use workload::{Error, latency::Recorder, live::Live};

use super::{
    reads::{self, Answer, Read, ReadStrategy, Tally},
    stage::{CONNECTIONS, Case, Stage, disturbed},
};
use crate::{
    options::positive,
    report::{Check, Checked, Table},
};

/// Different ids that do not exist, and their share of the requests.
const ABSENT: usize = 1000;
const ABSENT_SHARE: f64 = 0.01;
/// How much longer a rate that is not kept may take.
const LATE: Duration = Duration::from_secs(10);
/// Seconds shown in full; of a longer run those with failures are shown.
const MOST_SECONDS: usize = 120;
/// Keys are removed from Redis at this pace, as if they had expired, so that there are loads.
const EXPIRE_EVERY: Duration = Duration::from_millis(50);
/// What "no 5xx" forbids: 5xx, and no answer at all.
const FAILURES: [Answer; 2] = [Answer::ServerError, Answer::Nothing];

/// Options of steady reads.
#[derive(Debug, Args)]
pub struct Options {
    /// How long to read
    #[arg(long, default_value_t = 20, value_parser = value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Requests per second over all instances
    #[arg(long, default_value_t = 1000.0, value_name = "PER_SECOND", value_parser = positive)]
    rate: f64,
    /// The read strategy [default: the configured one]
    #[arg(long, value_name = "NAME")]
    read_strategy: Option<ReadStrategy>,
    /// Seconds with a 5xx, or without an answer, that are no violation
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    tolerate_seconds: usize,
}

impl Case for Options {
    /// Different ones.
    const SHOPS: u64 = 1000;

    async fn run(&self, stage: &Stage) -> Result<Checked, Error> {
        let mut readers = stage.connect(CONNECTIONS).await?;
        let (begin, duration) = (Instant::now(), Duration::from_secs(self.seconds));
        let take = move |seconds: &mut Vec<Second>, read: Read| {
            let second = read.ended.saturating_duration_since(begin).as_secs() as usize;
            seconds.resize_with(seconds.len().max(second + 1), Second::new);
            seconds[second].answers.count(read.answer);
            seconds[second].latency.record(read.latency);
        };
        let (ids, absent) = (stage.shops.clone(), reads::absent(ABSENT));
        let draws = draws(self.rate, ids, absent, begin, begin + duration);
        let (live, mut expired) = (Arc::<Live>::default(), 0);
        let reading = reads::read(&mut readers, self.read_strategy, &live, draws, take);
        let due = (self.rate * duration.as_secs_f64()) as u64;
        let expire = async || {
            let id = stage.shops[rand::rng().random_range(0..stage.shops.len())];
            // A Redis that is away is part of the show.
            expired += stage.keys.remove(&[id]).await.unwrap_or(0);
            Ok::<_, Error>(())
        };
        let reading = stage.progress.watch("reads", due, &live, reading);
        let seconds = disturbed(reading, EXPIRE_EVERY, expire).await?;
        let elapsed_s = begin.elapsed().as_secs_f64().max(1e-6);
        Ok(Checked {
            scenario: "cache read",
            heading: format!(
                "{} requests/s for {} shops (Zipf's law), {} % of them for absent ones, to {}; read strategy: {}.",
                self.rate,
                Self::SHOPS,
                100.0 * ABSENT_SHARE,
                stage.urls(),
                reads::name(self.read_strategy)
            ),
            notes: format!(
                "{} reads in {elapsed_s:.1} s: {:.0} requests/s. {expired} keys were removed from Redis by this tool.",
                live.done(),
                live.done() as f64 / elapsed_s
            ),
            figures: vec![timeline(&seconds)],
            checks: check(self, &seconds, due),
        })
    }
}

fn draws(
    rate: f64,
    ids: Vec<u64>,
    absent: Vec<u64>,
    begin: Instant,
    end: Instant,
) -> impl Iterator<Item = (u64, Option<Instant>)> + Send + 'static {
    (0..).map_while(move |number: u64| {
        let due = begin + Duration::from_secs_f64(number as f64 / rate.max(1e-3));
        // A rate that is not kept ends late, but not for ever.
        if due >= end || Instant::now() >= end + LATE {
            return None;
        }
        let mut rng = rand::rng();
        let id = if rng.random::<f64>() < ABSENT_SHARE {
            absent[rng.random_range(0..absent.len())]
        } else {
            ids[rank(ids.len(), rng.random())]
        };
        Some((id, Some(due)))
    })
}

/// One of `count` ranks, nearly by Zipf's law, from a number drawn evenly from 0 to 1: the probability of rank `r`, of which
/// the hottest is 0, is proportional to `ln(1 + 1 / (r + 1))`.
fn rank(count: usize, drawn: f64) -> usize {
    ((count as f64 + 1.0).powf(drawn) as usize).clamp(1, count) - 1
}

/// The reads that ended in one second.
struct Second {
    answers: Tally,
    latency: Recorder,
}

impl Second {
    fn new() -> Self {
        // Two digits: there may be thousands of seconds.
        Self { answers: Tally::default(), latency: Recorder::new(2) }
    }

    fn has_failed(&self) -> bool {
        self.answers.of(&FAILURES) > 0
    }
}

/// Checks a run by its seconds. `due` requests were due.
fn check(options: &Options, seconds: &[Second], due: u64) -> Vec<Check> {
    let unexpected = seconds.iter().map(|second| second.answers.of(&[Answer::Unexpected])).sum();
    let total: u64 = seconds.iter().map(|second| second.answers.total()).sum();
    let failed = seconds.iter().filter(|second| second.has_failed()).count();
    let (allowed, unsent) = (options.tolerate_seconds, due.saturating_sub(total));
    vec![
        Check::new("seconds with a 5xx or without an answer", failed, allowed, failed <= allowed),
        Check::none("unexpected answers, or that a shop which exists does not", unexpected),
        Check::new("reads", total, "at least 1", total > 0).needed(),
        Check::none("requests that were never sent (lower --rate)", unsent).needed(),
    ]
}

fn timeline(seconds: &[Second]) -> Table {
    let row = |(number, second): (usize, &Second)| {
        let (tally, latency) = (&second.answers, second.latency.summary());
        let mut cells = vec![number.to_string(), tally.total().to_string()];
        cells.extend([latency.p50_ms, latency.p99_ms, latency.max_ms].map(|ms| format!("{ms:.1}")));
        let answers = [Answer::ServerError, Answer::Nothing, Answer::Throttled];
        cells.extend(answers.map(|answer| tally.of(&[answer]).to_string()));
        cells
    };
    let columns =
        [">second", ">reads", ">p50 ms", ">p99 ms", ">max ms", ">5xx", ">no answer", ">429"];
    let shown = seconds.iter().enumerate();
    let shown = shown.filter(|(_, second)| seconds.len() <= MOST_SECONDS || second.has_failed());
    Table::new(&columns, shown.map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{options::defaults, report::CheckResult};

    #[test]
    fn the_first_ranks_are_hot() {
        let mut counts = [0; 10];
        (0..100_000).for_each(|draw| counts[rank(10, f64::from(draw) / 1e5)] += 1);
        // ln 2, ln 3/2 … of ln 11.
        assert_eq!((counts[0] / 1000, counts[1] / 1000, counts[9] / 1000), (28, 16, 3));
    }

    /// The worst result, of seconds with a shop and this answer each.
    fn result(answers: &[Answer], tolerate_seconds: usize, due: u64) -> CheckResult {
        let options = Options { tolerate_seconds, ..defaults() };
        let second = |answer: &Answer| {
            let answers = [Answer::Shop, *answer].into_iter().collect();
            Second { answers, ..Second::new() }
        };
        let seconds: Vec<_> = answers.iter().map(second).collect();
        CheckResult::worst(&check(&options, &seconds, due))
    }

    #[test]
    fn failures_and_wrong_answers_are_found() {
        let (good, bad) = (Answer::Shop, Answer::ServerError);
        assert_eq!(result(&[good, Answer::Absent, good], 0, 0), CheckResult::Holds);
        assert_eq!(result(&[good, Answer::Nothing, good], 0, 0), CheckResult::Violation);
        assert_eq!(result(&[good, bad, good], 1, 0), CheckResult::Holds);
        assert_eq!(result(&[good, bad, bad], 1, 0), CheckResult::Violation);
        assert_eq!(result(&[Answer::Unexpected], 0, 0), CheckResult::Violation);
    }

    #[test]
    fn a_rate_that_was_not_kept_proves_nothing() {
        assert_eq!(result(&[Answer::Absent], 0, 3), CheckResult::Unclear);
        assert_eq!(result(&[], 0, 0), CheckResult::Unclear);
    }
}
