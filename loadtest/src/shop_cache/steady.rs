//! Steady reads: a mixed hit ratio, second by second, so that something can be broken meanwhile.
//!
//! Shops are drawn at random. Some keys are removed from Redis all the time (as if they had expired), so that there are
//! loads. Requests are due at fixed times whatever the service does, and latency counts from then.

use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::{Args, value_parser};
use rand::Rng;
use tokio::time::sleep;
use workload::{Error, latency::Latency, live::Live};

use super::{
    reads::{self, Answer, Read, count},
    stage::{CONNECTIONS, Stage},
};
use crate::{
    options::positive,
    report::{Check, Checked, Table},
};

/// How much longer a run may take if it does not keep its rate.
const LATE: Duration = Duration::from_secs(10);
/// Keys are removed from Redis at this pace, as if they had expired, so that there are loads.
const EXPIRE_EVERY: Duration = Duration::from_millis(50);

/// The columns of the table of seconds.
const COLUMNS: [&str; 8] = [
    ">second",
    ">reads",
    ">p50 ms",
    ">p99 ms",
    ">max ms",
    ">5xx",
    ">no answer",
    ">429",
];

/// Options of steady reads.
#[derive(Debug, Args)]
pub struct Pace {
    /// How long to read
    #[arg(long, default_value_t = 20, value_parser = value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Requests per second over all instances
    #[arg(long, default_value_t = 1000.0, value_name = "PER_SECOND", value_parser = positive)]
    rate: f64,
    /// Seconds with a 5xx, or without an answer, that are no violation
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    tolerate_seconds: usize,
}

pub async fn run(pace: &Pace, stage: &Stage) -> Result<Checked, Error> {
    let mut readers = stage.connect(CONNECTIONS).await?;
    let begin = Instant::now();
    let duration = Duration::from_secs(pace.seconds);
    let end = begin + duration;
    let rate = pace.rate;
    let shops = stage.shops.clone();
    let draws = (0..).map_while(move |number: u64| {
        let due_at = begin + Duration::from_secs_f64(number as f64 / rate.max(1e-3));
        // A run that does not keep its rate ends late, but it ends.
        if due_at >= end || Instant::now() >= end + LATE {
            return None;
        }
        Some((one_of(&shops), Some(due_at)))
    });
    let live = Arc::new(Live::stopped_by(&stage.stop));
    let due_count = (rate * duration.as_secs_f64()) as u64;
    let reading = reads::read(&mut readers, None, &live, draws);
    let reading = stage.progress.watch("reads", due_count, &live, reading);
    let reads = tokio::select! {
        reads = reading => reads?,
        never = expire_keys(stage) => match never {},
    };
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
            "{rate} requests/s for {} shops, to {}.",
            stage.shops.len(),
            stage.urls(),
        ),
        notes: format!(
            "{all} reads in {elapsed_s:.1} s: {:.0} requests/s.",
            all / elapsed_s
        ),
        figures: vec![timeline(&seconds)],
        checks: check(pace.tolerate_seconds, &seconds, due_count),
    })
}

/// Removes keys for ever.
async fn expire_keys(stage: &Stage) -> Infallible {
    loop {
        sleep(EXPIRE_EVERY).await;
        let id = one_of(&stage.shops);
        // A user may have broken Redis meanwhile: that is what this scenario is for.
        stage.keys.remove(&[id]).await.ok();
    }
}

fn one_of(shops: &[u64]) -> u64 {
    shops[rand::rng().random_range(0..shops.len())]
}

/// Checks a run by the reads that ended in each second. `due_count` requests were due; the first is always sent.
fn check(tolerated: usize, seconds: &[Vec<Read>], due_count: u64) -> Vec<Check> {
    let failed = seconds
        .iter()
        .filter(|reads| count(reads, Answer::ServerError) + count(reads, Answer::Nothing) > 0)
        .count();
    let unexpected = seconds.iter().map(|reads| count(reads, Answer::Unexpected));
    let sent: u64 = seconds.iter().map(|reads| reads.len() as u64).sum();
    let unsent = due_count.saturating_sub(sent);
    let what = "seconds with a 5xx or without an answer";
    vec![
        Check::new(what, failed, tolerated, failed <= tolerated),
        Check::none(
            "unexpected answers, or that a shop which exists does not",
            unexpected.sum(),
        ),
        Check::none("requests that were never sent (lower --rate)", unsent).needed(),
    ]
}

fn timeline(seconds: &[Vec<Read>]) -> Table {
    let mut rows = Vec::new();
    for (number, reads) in seconds.iter().enumerate() {
        let latency = Latency::from_durations(reads.iter().map(|read| read.latency));
        rows.push(vec![
            number.to_string(),
            reads.len().to_string(),
            format!("{:.1}", latency.p50_ms),
            format!("{:.1}", latency.p99_ms),
            format!("{:.1}", latency.max_ms),
            count(reads, Answer::ServerError).to_string(),
            count(reads, Answer::Nothing).to_string(),
            count(reads, Answer::Throttled).to_string(),
        ]);
    }
    Table::new(&COLUMNS, rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::CheckResult;

    #[test]
    fn failures_wrong_answers_and_a_rate_that_was_not_kept_are_found() {
        use Answer::{Nothing, ServerError, Shop, Unexpected};
        use CheckResult::{Holds, Unclear, Violation};
        for (answers, tolerated, due_count, expected) in [
            ([Shop, Shop, Shop], 0, 6, Holds),
            ([Shop, Nothing, Shop], 0, 6, Violation),
            ([Shop, ServerError, Shop], 1, 6, Holds),
            ([Shop, ServerError, ServerError], 1, 6, Violation),
            ([Shop, Shop, Unexpected], 3, 6, Violation),
            ([Shop, Shop, Shop], 0, 7, Unclear),
        ] {
            // Three seconds, each with a read that got the shop and one with this answer.
            let seconds = answers.map(|answer| [Shop, answer].map(Read::answered).to_vec());
            let found = CheckResult::worst(&check(tolerated, &seconds, due_count));
            assert_eq!(found, expected, "{answers:?}");
        }
    }
}
