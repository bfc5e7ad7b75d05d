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
use workload::{Error, latency::Latency, live::Live};

use super::{
    reads::{self, Answer, Read, ReadStrategy, absent, count},
    stage::{CONNECTIONS, Case, Stage, disturbed},
};
use crate::{
    options::positive,
    report::{Check, Checked, Table},
};

/// The share of the requests for ids that do not exist.
const ABSENT_SHARE: f64 = 0.01;
/// How much longer a run may take if it does not keep its rate.
const LATE: Duration = Duration::from_secs(10);
/// Keys are removed from Redis at this pace, as if they had expired, so that there are loads.
const EXPIRE_EVERY: Duration = Duration::from_millis(50);

/// Options of steady reads.
#[derive(Debug, Args)]
pub struct Options {
    /// How long to read
    #[arg(long, default_value_t = 20, value_parser = value_parser!(u64).range(1..=600))]
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
    /// Shops from which reads are drawn.
    const SHOPS: u64 = 1000;

    async fn run(&self, stage: &Stage) -> Result<Checked, Error> {
        let mut readers = stage.connect(CONNECTIONS).await?;
        let begin = Instant::now();
        let duration = Duration::from_secs(self.seconds);
        let draws = draws(self.rate, stage.shops.clone(), begin, begin + duration);
        let live = Arc::new(Live::stopped_by(&stage.stop));
        let due_count = (self.rate * duration.as_secs_f64()) as u64;
        let reading = reads::read(&mut readers, self.read_strategy, &live, draws);
        let reading = stage.progress.watch("reads", due_count, &live, reading);
        let reads = disturbed(reading, EXPIRE_EVERY, async || {
            let id = stage.shops[rand::rng().random_range(0..stage.shops.len())];
            // A user may have broken Redis meanwhile: that is what this case is for.
            stage.keys.remove(&[id]).await.ok();
            Ok(())
        })
        .await?;
        let all = reads.len() as f64;
        let elapsed_s = begin.elapsed().as_secs_f64().max(1e-6);
        let mut seconds = Vec::<Vec<Read>>::new();
        for read in reads {
            let second = read.ended.saturating_duration_since(begin).as_secs() as usize;
            seconds.resize_with(seconds.len().max(second + 1), Vec::new);
            seconds[second].push(read);
        }
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
                "{all} reads in {elapsed_s:.1} s: {:.0} requests/s.",
                all / elapsed_s
            ),
            figures: vec![timeline(&seconds)],
            checks: check(self.tolerate_seconds, &seconds, due_count),
        })
    }
}

fn draws(
    rate: f64,
    ids: Vec<u64>,
    begin: Instant,
    end: Instant,
) -> impl Iterator<Item = (u64, Option<Instant>)> + Send + 'static {
    (0..).map_while(move |number: u64| {
        let due_at = begin + Duration::from_secs_f64(number as f64 / rate.max(1e-3));
        // A run that does not keep its rate ends late, but it ends.
        if due_at >= end || Instant::now() >= end + LATE {
            return None;
        }
        let mut rng = rand::rng();
        let is_absent = rng.random::<f64>() < ABSENT_SHARE;
        let id = if is_absent {
            absent()
        } else {
            ids[rank(ids.len(), rng.random())]
        };
        Some((id, Some(due_at)))
    })
}

/// One of `count` ranks, of which 0 is the hottest, nearly by Zipf's law, from a number drawn evenly from 0 to 1: the
/// probability of rank `r` is proportional to `ln(1 + 1 / (r + 1))`.
fn rank(count: usize, drawn: f64) -> usize {
    ((count as f64 + 1.0).powf(drawn) as usize).clamp(1, count) - 1
}

/// Checks a run by the reads that ended in each second. `due_count` requests were due; the first is always sent.
fn check(tolerated: usize, seconds: &[Vec<Read>], due_count: u64) -> Vec<Check> {
    let failed = seconds
        .iter()
        .filter(|reads| count(reads, &[Answer::ServerError, Answer::Nothing]) > 0)
        .count();
    let unexpected = seconds
        .iter()
        .map(|reads| count(reads, &[Answer::Unexpected]))
        .sum();
    let unsent = due_count.saturating_sub(seconds.iter().map(|reads| reads.len() as u64).sum());
    let what = "seconds with a 5xx or without an answer";
    vec![
        Check::new(what, failed, tolerated, failed <= tolerated),
        Check::none(
            "unexpected answers, or that a shop which exists does not",
            unexpected,
        ),
        Check::none("requests that were never sent (lower --rate)", unsent).needed(),
    ]
}

fn timeline(seconds: &[Vec<Read>]) -> Table {
    let mut rows = Vec::new();
    for (number, reads) in seconds.iter().enumerate() {
        let latency = Latency::from_durations(reads.iter().map(|read| read.latency));
        let mut cells = vec![number.to_string(), reads.len().to_string()];
        cells.extend([latency.p50_ms, latency.p99_ms, latency.max_ms].map(|ms| format!("{ms:.1}")));
        let answers = [Answer::ServerError, Answer::Nothing, Answer::Throttled];
        cells.extend(answers.map(|answer| count(reads, &[answer]).to_string()));
        rows.push(cells);
    }
    let columns = [
        ">second",
        ">reads",
        ">p50 ms",
        ">p99 ms",
        ">max ms",
        ">5xx",
        ">no answer",
        ">429",
    ];
    Table::new(&columns, rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::CheckResult;

    #[test]
    fn the_first_ranks_are_hot() {
        let mut counts = [0; 10];
        (0..100_000).for_each(|draw| counts[rank(10, f64::from(draw) / 1e5)] += 1);
        // ln 2, ln 3/2 … of ln 11.
        assert_eq!(
            (counts[0] / 1000, counts[1] / 1000, counts[9] / 1000),
            (28, 16, 3)
        );
    }

    #[test]
    fn failures_wrong_answers_and_a_rate_that_was_not_kept_are_found() {
        use CheckResult::{Holds, Unclear, Violation};
        let good = Answer::Absent;
        let bad = Answer::ServerError;
        for (answers, tolerated, due_count, expected) in [
            ([good, good, good], 0, 6, Holds),
            ([good, Answer::Nothing, good], 0, 6, Violation),
            ([good, bad, good], 1, 6, Holds),
            ([good, bad, bad], 1, 6, Violation),
            ([good, good, Answer::Unexpected], 3, 6, Violation),
            ([good, good, good], 0, 7, Unclear),
        ] {
            // Three seconds, each with a read that got the shop and one with this answer.
            let seconds = answers.map(|answer| [Answer::Shop, answer].map(Read::answered).to_vec());
            let found = CheckResult::worst(&check(tolerated, &seconds, due_count));
            assert_eq!(found, expected, "{answers:?}");
        }
    }
}
