//! Steady reads: a mixed hit ratio, second by second, so that something can be broken meanwhile.
//!
//! Ids are drawn by Zipf's law: the hot ones are answered from memory, the others from Redis. Some keys are removed from
//! Redis all the time (as if they had expired), so that there are loads, and some requests are for ids that do not exist.
//! With a rate, requests are due at fixed times whatever the service does, and latency counts from then. Without, each
//! connection sends its next request when it has the answer to the last.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use clap::{Args, value_parser};
use rand::Rng;
use testkit::wait::until;
use tokio::time::{MissedTickBehavior, interval};
use workload::{Error, latency::Recorder, live::Live};

use super::{
    keys::RedisKeys,
    metrics::{BREAKERS_OPEN, Layers, Nodes},
    place::Place,
    reads::{self, Answer, Read, ReadStrategy, Reads, Tally},
    shops::ShopTable,
};
use crate::{
    options::number,
    report::{Check, Checked, Table},
};

/// Ids that do not exist, of which there is a fixed number, so that they can be cleaned up after.
const ABSENT: std::ops::Range<u64> = 5_000_000_000_000..5_000_000_001_000;
/// How long the clean-up waits for a server that is away.
const CLEAN_UP: Duration = Duration::from_secs(15);
/// How much longer a rate that is not kept may take.
const LATE: Duration = Duration::from_secs(10);
/// Seconds shown in full; a longer run is shown around its failures.
const MOST_SECONDS: usize = 120;

/// Keys are removed from Redis at this pace, as if they had expired, so that there are loads.
const EXPIRE_EVERY: Duration = Duration::from_millis(50);

/// Options of steady reads.
#[derive(Debug, Clone, Args)]
pub struct ReadOptions {
    /// How long to read
    #[arg(long, default_value_t = 20, value_parser = value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Requests per second over all instances: an open loop [default: a closed loop]
    #[arg(long, value_name = "PER_SECOND", value_parser = positive)]
    rate: Option<f64>,
    /// Keep-alive connections per instance
    #[arg(long, default_value_t = 64, value_parser = value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// Different shops; temporary ones are made where there are fewer
    #[arg(long, default_value_t = 1000, value_parser = value_parser!(u64).range(1..=1_000_000))]
    ids: u64,
    /// Share of the requests that ask for shops which do not exist, in percent
    #[arg(long, default_value_t = 1.0, value_name = "PERCENT", value_parser = percent)]
    absent: f64,
    /// The read strategy [default: the configured one]
    #[arg(long, value_name = "NAME")]
    read_strategy: Option<ReadStrategy>,
    /// Seconds with a 5xx, or without an answer, that are no violation
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    tolerate_seconds: usize,
}

fn positive(text: &str) -> Result<f64, String> {
    number(text, |number| number > 0.0, "above 0")
}

fn percent(text: &str) -> Result<f64, String> {
    number(text, |number| (0.0..=100.0).contains(&number), "from 0 to 100")
}

/// Reads, and removes what it made.
pub(super) async fn run(options: &ReadOptions, place: &Place) -> Result<Checked, Error> {
    let (table, keys) = place.open().await?;
    let mut ids = table.ids(options.ids).await?;
    let missing = options.ids.saturating_sub(ids.len() as u64);
    let mut temporary = Vec::new();
    if missing > 0 {
        place.progress.say(&format!("making {missing} temporary shops"));
        temporary = table.make_temporary(missing).await?;
        ids.extend(&temporary);
    }
    let measured = measure(options, place, &keys, &ids).await;
    // Whatever happened: what was made is removed, and a server that was broken may come back.
    let mut cleaned = Ok(());
    until(CLEAN_UP, async || {
        cleaned = clean_up(&keys, &table, &temporary).await;
        cleaned.is_ok()
    })
    .await;
    if let Err(error) = cleaned {
        place.progress.say(&format!("not all was cleaned up: {error}"));
    }
    measured
}

async fn clean_up(keys: &RedisKeys, table: &ShopTable, temporary: &[u64]) -> Result<(), Error> {
    if !temporary.is_empty() {
        // Rows first, so that they are not cached again.
        table.remove_temporary().await?;
        keys.remove(temporary).await?;
        keys.drop_filters().await?;
    }
    keys.remove(&ABSENT.collect::<Vec<_>>()).await.map(drop)
}

async fn measure(
    options: &ReadOptions,
    place: &Place,
    keys: &RedisKeys,
    ids: &[u64],
) -> Result<Checked, Error> {
    // The filter does not know the new rows; it is filled anew, with them.
    keys.drop_filters().await?;
    let mut readers = place.connect(options.connections).await?;
    let count = readers.count();
    let mut nodes = Nodes::new(&place.targets);
    let before = nodes.layers().await?;
    let (begin, duration) = (Instant::now(), Duration::from_secs(options.seconds));
    let end = begin + duration;
    let seen = Arc::new(Mutex::new(Vec::<Second>::new()));
    let live = Arc::new(Live::default());
    let source = Arc::new(Reads {
        strategy: options.read_strategy,
        next: next(options, ids, begin, end),
        ended: {
            let (seen, live) = (seen.clone(), live.clone());
            move |read: Read| {
                live.count(false);
                let second = read.ended.saturating_duration_since(begin).as_secs() as usize;
                let seconds = &mut *lock(&seen);
                seconds.resize_with(seconds.len().max(second + 1), Second::new);
                seconds[second].answers.count(&read.answer);
                seconds[second].latency.record(read.latency());
            }
        },
    });
    let (mut expired, mut samples) = (0, vec![Some((before, 0))]);
    let watching = sample(&mut nodes, &mut samples);
    let expiring = expire(keys, ids, &mut expired);
    let total = options.rate.map_or(0, |rate| (rate * duration.as_secs_f64()) as u64);
    let reading = place.progress.watch("reads", total, &live, readers.drive(&source, &live));
    tokio::select! {
        read = reading => read?,
        () = async { tokio::join!(watching, expiring); } => {}
    }
    let elapsed = begin.elapsed().as_secs_f64();
    // The last sample counts where an instance is away at the end.
    samples.push(Nodes::new(&place.targets).sample().await);
    let seconds = std::mem::take(&mut *lock(&seen));
    let mut answers = Tally::default();
    seconds.iter().for_each(|second| answers.add(&second.answers));
    let last = samples.iter().rev().flatten().next().map_or(before, |(layers, _)| *layers);
    let how = match options.rate {
        Some(rate) => format!("{rate} requests/s"),
        None => "a closed loop".to_owned(),
    };
    Ok(Checked {
        scenario: "cache read",
        heading: format!(
            "{} shops (Zipf's law), {} % of the requests for absent ones, {} connections to {}; {how}; read strategy: {}.",
            ids.len(),
            options.absent,
            count,
            place.urls(),
            reads::name(options.read_strategy)
        ),
        notes: format!(
            "{} reads in {elapsed:.1} s: {:.0} requests/s. {expired} keys were removed from Redis by this tool. Readers that\n\
             shared another's work are in no layer.",
            answers.total(),
            answers.total() as f64 / elapsed.max(1e-6)
        ),
        figures: vec![timeline(&seconds, &samples), layers(last.since(before))],
        checks: check(options, &answers, &seconds, total),
    })
}

/// Draws the ids, each due at its time where there is a rate.
fn next(
    options: &ReadOptions,
    ids: &[u64],
    begin: Instant,
    end: Instant,
) -> impl Fn() -> Option<(u64, Option<Instant>)> + Send + Sync + 'static {
    let (zipf, ids) = (Zipf::new(ids.len()), ids.to_vec());
    let (absent, rate, number) = (options.absent / 100.0, options.rate, AtomicU64::new(0));
    move || {
        let due = rate.map(|rate| {
            let number = number.fetch_add(1, Ordering::Relaxed) as f64;
            begin + Duration::from_secs_f64(number / rate.max(1e-3))
        });
        // A rate that is not kept ends late, but not for ever.
        let now = Instant::now();
        if due.unwrap_or(now) >= end || now >= end + LATE {
            return None;
        }
        let mut rng = rand::rng();
        let is_absent = rng.random::<f64>() < absent;
        let id = if is_absent { rng.random_range(ABSENT) } else { ids[zipf.draw(&mut rng)] };
        Some((id, due))
    }
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
}

fn lock(seen: &Mutex<Vec<Second>>) -> MutexGuard<'_, Vec<Second>> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Who answered so far, and how many instances have given Redis up; `None`: an instance did not tell.
type Sample = Option<(Layers, u64)>;

impl Nodes {
    async fn sample(&mut self) -> Sample {
        Some((self.layers().await.ok()?, self.gauge(BREAKERS_OPEN).await.ok()?))
    }
}

/// A sample at the end of each second. Never ends.
async fn sample(nodes: &mut Nodes, samples: &mut Vec<Sample>) {
    let mut tick = interval(Duration::from_secs(1));
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    tick.tick().await;
    loop {
        tick.tick().await;
        samples.push(nodes.sample().await);
    }
}

/// Removes keys, as long as Redis lets it. Never ends.
async fn expire(keys: &RedisKeys, ids: &[u64], expired: &mut u64) {
    let mut tick = interval(EXPIRE_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let id = ids[rand::rng().random_range(0..ids.len())];
        // A Redis that is away is part of the show.
        *expired += keys.remove(&[id]).await.unwrap_or(0);
    }
}

/// The seconds with a 5xx or without an answer.
fn failed(seconds: &[Second]) -> Vec<usize> {
    let failed =
        |(number, second): (usize, &Second)| (second.answers.failures() > 0).then_some(number);
    seconds.iter().enumerate().filter_map(failed).collect()
}

/// Checks a run by its seconds. `due` requests were due, where there was a rate.
fn check(options: &ReadOptions, answers: &Tally, seconds: &[Second], due: u64) -> Vec<Check> {
    let (failed, allowed) = (failed(seconds).len(), options.tolerate_seconds);
    let unsent = due.saturating_sub(answers.total());
    let mut checks = vec![
        Check::new("seconds with a 5xx or without an answer", failed, allowed, failed <= allowed),
        Check::none("unexpected answers", answers.of(&Answer::Unexpected)),
        Check::new("reads", answers.total(), "at least 1", answers.total() > 0).needed(),
        Check::none("requests that were never sent (lower --rate, more --connections)", unsent)
            .needed(),
    ];
    // All ids that are read as existing do exist.
    if options.absent == 0.0 {
        let denied = answers.of(&Answer::Absent);
        checks.push(Check::none("answers that deny a shop that exists", denied));
    }
    checks
}

fn timeline(seconds: &[Second], samples: &[Sample]) -> Table {
    let failed = failed(seconds);
    let near = |second: usize| failed.iter().any(|failed| second.abs_diff(*failed) <= 3);
    let row = |(number, second): (usize, &Second)| {
        let (tally, latency) = (&second.answers, second.latency.summary());
        let sample = |at: usize| samples.get(at).copied().flatten();
        let (before, after) = (sample(number), sample(number + 1));
        let told = |count: Option<u64>| count.map_or("?".to_owned(), |count| count.to_string());
        let layers = before.zip(after).map(|((before, _), (after, _))| after.since(before));
        let mut cells = vec![number.to_string(), tally.total().to_string()];
        cells.extend([latency.p50_ms, latency.p99_ms, latency.max_ms].map(|ms| format!("{ms:.1}")));
        let answers = [Answer::ServerError, Answer::Nothing, Answer::Throttled];
        cells.extend(answers.map(|answer| tally.of(&answer).to_string()));
        cells.extend([Layers::memory, Layers::redis, Layers::loads].map(|of| told(layers.map(of))));
        cells.push(told(after.map(|(_, open)| open)));
        cells
    };
    let columns = [
        ">second",
        ">reads",
        ">p50 ms",
        ">p99 ms",
        ">max ms",
        ">5xx",
        ">no answer",
        ">429",
        ">memory",
        ">Redis",
        ">loads",
        ">breakers open",
    ];
    let shown = seconds.iter().enumerate();
    let shown = shown.filter(|(number, _)| seconds.len() <= MOST_SECONDS || near(*number));
    Table::new(&columns, shown.map(row).collect())
}

fn layers(layers: Layers) -> Table {
    let all: u64 = layers.each().map(|(_, count)| count).sum();
    let row = |(name, count): (&str, u64)| {
        let share = 100.0 * count as f64 / all.max(1) as f64;
        vec![name.to_owned(), count.to_string(), format!("{share:.2} %")]
    };
    Table::new(&["answered by", ">count", ">share"], layers.each().map(row).collect())
}

/// Draws indices 0…n−1 with the probability of index `i` proportional to `1/(i+1)` (Zipf's law). Exact, by bisection of the cumulated weights.
struct Zipf(Vec<f64>);

impl Zipf {
    /// For `n` ≥ 1 indices.
    fn new(n: usize) -> Self {
        let mut sum = 0.0;
        let weights = (1..=n.max(1)).map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        });
        Self(weights.collect())
    }

    fn draw(&self, rng: &mut impl Rng) -> usize {
        let last = self.0.len() - 1;
        let at = rng.random::<f64>() * self.0[last];
        self.0.partition_point(|sum| *sum <= at).min(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{options::defaults, report::CheckResult};

    #[test]
    fn draws_follow_the_law() {
        let counts = |n: usize| {
            let (zipf, mut rng) = (Zipf::new(n), rand::rng());
            let mut counts = vec![0; n];
            (0..100_000).for_each(|_| counts[zipf.draw(&mut rng)] += 1);
            counts
        };
        // Of ten the first has 1 / 2.929 of all, the second half of that.
        let skewed = counts(10);
        assert!((33_000..35_500).contains(&skewed[0]), "{skewed:?}");
        assert!((16_000..18_200).contains(&skewed[1]), "{skewed:?}");
        assert_eq!(counts(1), [100_000]);
    }

    /// The worst result, of seconds with a shop and this answer each.
    fn result(answers: &[Answer], tolerate_seconds: usize, absent: f64, due: u64) -> CheckResult {
        let options = ReadOptions { tolerate_seconds, absent, ..defaults() };
        let second = |answer: &Answer| {
            let mut second = Second::new();
            second.answers.count(&Answer::Found(1, "a".into()));
            second.answers.count(answer);
            second
        };
        let seconds: Vec<_> = answers.iter().map(second).collect();
        let mut all = Tally::default();
        seconds.iter().for_each(|second| all.add(&second.answers));
        let checks = check(&options, &all, &seconds, due);
        CheckResult::worst(&checks)
    }

    #[test]
    fn seconds_with_failures_are_counted() {
        let (good, bad, silent) =
            (Answer::Found(1, "a".into()), Answer::ServerError, Answer::Nothing);
        let of = |answers: [&Answer; 3], tolerated| {
            result(&answers.map(Clone::clone), tolerated, 0.0, 0)
        };
        assert_eq!(of([&good, &good, &good], 0), CheckResult::Holds);
        assert_eq!(of([&good, &bad, &good], 0), CheckResult::Violation);
        assert_eq!(of([&good, &silent, &good], 0), CheckResult::Violation);
        assert_eq!(of([&good, &bad, &good], 1), CheckResult::Holds);
        assert_eq!(of([&good, &bad, &bad], 1), CheckResult::Violation);
    }

    #[test]
    fn wrong_answers_are_found() {
        assert_eq!(result(&[Answer::Unexpected], 0, 1.0, 0), CheckResult::Violation);
        assert_eq!(result(&[Answer::Absent], 0, 0.0, 0), CheckResult::Violation);
        assert_eq!(result(&[Answer::Absent], 0, 1.0, 0), CheckResult::Holds);
    }

    #[test]
    fn a_rate_that_was_not_kept_proves_nothing() {
        assert_eq!(result(&[Answer::Absent], 0, 1.0, 3), CheckResult::Unclear);
        assert_eq!(result(&[], 0, 1.0, 0), CheckResult::Unclear);
    }
}
