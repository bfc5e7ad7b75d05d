//! Steady reads: a mixed hit ratio, second by second, so that something can be broken meanwhile.
//!
//! Ids are drawn by Zipf's law: the hot ones are answered from memory, the others from Redis. Some
//! keys are removed from Redis all the time (as if they had expired), so that there are loads, and
//! some requests are for ids that do not exist. With a rate this is an open loop: requests are due
//! at fixed times whatever the service does, and latency counts from then. Without, each connection
//! sends its next request when it has the answer to the last.

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

use self::{
    check::check,
    report::{Report, Second},
};
use super::check_result::CheckResult;
use crate::{
    options::{Instances, number},
    reads::{
        Layers, Nodes, Read, ReadStrategy, Readers, RedisKeys, ShopTable, Source,
        answer::Tally,
        read_strategy,
        readers::Job,
        schedule::{Zipf, due},
        shops::Temporary,
    },
};
use workload::{Error, latency::Recorder};

pub mod check;
pub mod report;

/// Ids that do not exist, of which there is a fixed number, so that they can be cleaned up after.
const ABSENT: std::ops::Range<u64> = 5_000_000_000_000..5_000_000_001_000;
/// How long the clean-up waits for a server that is away.
const CLEAN_UP: Duration = Duration::from_secs(15);

/// Options of steady reads.
#[derive(Debug, Clone, Args)]
pub struct ReadOptions {
    /// How long to read
    #[arg(long, default_value_t = 20, value_parser = value_parser!(u64).range(1..=86_400))]
    pub seconds: u64,
    /// Requests per second over all instances: an open loop [default: a closed loop]
    #[arg(long, value_name = "PER_SECOND", value_parser = positive)]
    pub rate: Option<f64>,
    /// Keep-alive connections per instance
    #[arg(long, default_value_t = 64, value_parser = value_parser!(u32).range(1..=10_000))]
    pub connections: u32,
    /// Different shops; temporary ones are made where there are fewer
    #[arg(long, default_value_t = 1000, value_parser = value_parser!(u64).range(1..=1_000_000))]
    pub ids: u64,
    /// Skew of Zipf's law over them: 0 means all alike, 1 is the classic web
    #[arg(long, default_value_t = 1.0, value_name = "SKEW", value_parser = not_negative)]
    pub zipf: f64,
    /// Share of the requests that ask for shops which do not exist, in percent
    #[arg(long, default_value_t = 1.0, value_name = "PERCENT", value_parser = percent)]
    pub absent: f64,
    /// Keys removed from Redis per second, as if they had expired, so that there are loads
    #[arg(long, default_value_t = 20.0, value_name = "KEYS", value_parser = not_negative)]
    pub expire_per_second: f64,
    /// The read strategy [default: the configured one]
    #[arg(long, alias = "policy", value_name = "NAME")]
    pub read_strategy: Option<ReadStrategy>,
    /// Seconds with a 5xx, or without an answer, that are no violation
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    pub tolerate_seconds: usize,
    /// Time limit of one read, in seconds
    #[arg(long, default_value_t = 10, value_name = "SECONDS", value_parser = value_parser!(u64).range(1..=600))]
    pub timeout: u64,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub instances: Instances,
}

fn positive(text: &str) -> Result<f64, String> {
    number(text, |number| number > 0.0, "above 0")
}

fn not_negative(text: &str) -> Result<f64, String> {
    number(text, |number| number >= 0.0, "of at least 0")
}

fn percent(text: &str) -> Result<f64, String> {
    number(text, |number| (0.0..=100.0).contains(&number), "from 0 to 100")
}

/// Reads, and removes what it made.
///
/// # Errors
/// An [`Error`] of the set-up.
pub async fn run(options: &ReadOptions) -> Result<Report, Error> {
    let table = ShopTable::open(&options.instances.access.database_url).await?;
    let keys = RedisKeys::open(&options.instances.access).await?;
    let mut ids = table.ids(options.ids).await?;
    let missing = options.ids.saturating_sub(ids.len() as u64);
    let mut temporary = None;
    if missing > 0 {
        options.instances.progress.say(&format!("making {missing} temporary shops"));
        let shops = table.make_temporary(missing).await?;
        ids.extend(&shops.ids);
        temporary = Some(shops);
    }
    let measured = measure(options, &keys, &ids).await;
    // Whatever happened: what was made is removed, and a server that was broken may come back.
    let mut cleaned = Ok(());
    until(CLEAN_UP, async || {
        cleaned = clean_up(&keys, temporary.as_ref()).await;
        cleaned.is_ok()
    })
    .await;
    if let Err(error) = cleaned {
        options.instances.progress.say(&format!("not all was cleaned up: {error}"));
    }
    measured
}

async fn clean_up(keys: &RedisKeys, temporary: Option<&Temporary>) -> Result<(), Error> {
    if let Some(shops) = temporary {
        // Rows first, so that they are not cached again.
        shops.remove().await?;
        keys.remove(&shops.ids).await?;
        keys.drop_filters(&keys.filters().await?).await?;
    }
    keys.remove(&ABSENT.collect::<Vec<_>>()).await.map(drop)
}

async fn measure(options: &ReadOptions, keys: &RedisKeys, ids: &[u64]) -> Result<Report, Error> {
    if options.ids > 0 && ids.is_empty() {
        return Err(Error::Usage("there is no shop to read: `seckill seed` makes some".to_owned()));
    }
    // The filter does not know the new rows; it is filled anew, with them.
    keys.drop_filters(&keys.filters().await?).await?;
    let mut readers = Readers::open(
        &options.instances.targets,
        options.connections,
        Duration::from_secs(options.timeout),
    )
    .await?;
    let mut nodes = Nodes::new(&options.instances.targets);
    let before = nodes.layers().await?;
    let duration = Duration::from_secs(options.seconds);
    let steady = Arc::new(Steady {
        strategy: options.read_strategy,
        zipf: Zipf::new(ids.len(), options.zipf),
        ids: ids.into(),
        absent: options.absent / 100.0,
        rate: options.rate,
        begin: Instant::now(),
        end: Instant::now() + duration,
        next: AtomicU64::new(0),
        state: Mutex::new(State { overall: Recorder::new(3), seconds: Vec::new() }),
    });
    let mut expired = 0;
    let mut samples = vec![Sample { layers: Some(before), breakers_open: None }];
    let watching = watch(options, &steady, &mut nodes, &mut samples);
    let expiring = expire(options, keys, ids, &mut expired);
    let drained = tokio::select! {
        drained = readers.drain(&steady) => drained,
        () = async { tokio::join!(watching, expiring); } => Ok(()),
    };
    drained?;
    let elapsed = steady.begin.elapsed().as_secs_f64();
    // The last sample counts where an instance is away at the end.
    samples.push(Sample::take(&mut Nodes::new(&options.instances.targets)).await);
    let last = samples.iter().rev().find_map(|sample| sample.layers).unwrap_or(before);
    let layers = last.since(before);
    let state = steady.state();
    let mut timeline: Vec<_> = state.seconds.iter().map(Bin::summary).collect();
    for (second, pair) in timeline.iter_mut().zip(samples.windows(2)) {
        (second.layers, second.breakers_open) = (pair[1].since(&pair[0]), pair[1].breakers_open);
    }
    let mut answers = Tally::default();
    state.seconds.iter().for_each(|bin| answers.add(&bin.answers));
    let due = options.rate.map_or(0, |rate| (rate * duration.as_secs_f64()) as u64);
    let mut report = Report {
        scenario: "read",
        targets: options.instances.urls(),
        read_strategy: read_strategy::name(options.read_strategy),
        rate: options.rate,
        connections: readers.len(),
        ids: ids.len(),
        zipf: options.zipf,
        absent: options.absent / 100.0,
        elapsed_s: elapsed,
        requests_per_s: answers.total() as f64 / elapsed.max(1e-6),
        unsent: due.saturating_sub(answers.total()),
        answers,
        latency: state.overall.summary(),
        layers,
        expired,
        timeline,
        tolerate_seconds: options.tolerate_seconds,
        check: CheckResult::Holds,
    };
    report.check = check(&report);
    Ok(report)
}

/// The metrics at the end of a second.
#[derive(Default)]
struct Sample {
    layers: Option<Layers>,
    breakers_open: Option<u64>,
}

impl Sample {
    /// Nothing, where an instance cannot tell.
    async fn take(nodes: &mut Nodes) -> Self {
        let Ok(pages) = nodes.pages().await else { return Self::default() };
        let breakers: Result<Vec<_>, _> =
            pages.iter().map(|page| page.get("seckill_cache_breaker_open")).collect();
        Self {
            layers: Layers::sum(&pages).ok(),
            breakers_open: breakers.ok().map(|open| open.iter().sum()),
        }
    }

    fn since(&self, before: &Self) -> Option<Layers> {
        Some(self.layers?.since(before.layers?))
    }
}

/// Each second: what the metrics tell, and a line of progress. Never ends.
async fn watch(
    options: &ReadOptions,
    steady: &Steady,
    nodes: &mut Nodes,
    samples: &mut Vec<Sample>,
) {
    let mut tick = interval(Duration::from_secs(1));
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    tick.tick().await;
    loop {
        tick.tick().await;
        samples.push(Sample::take(nodes).await);
        let [.., before, now] = samples.as_slice() else { continue };
        let number = samples.len() - 2;
        let second = steady.state().seconds.get(number).map(Bin::summary).unwrap_or_default();
        let layers = now.since(before);
        let line = report::progress(
            number,
            &Second { layers, breakers_open: now.breakers_open, ..second },
        );
        options.instances.progress.say(&line);
    }
}

/// Removes keys at the rate asked for, as long as Redis lets it. Never ends.
async fn expire(options: &ReadOptions, keys: &RedisKeys, ids: &[u64], expired: &mut u64) {
    if options.expire_per_second <= 0.0 || ids.is_empty() {
        return std::future::pending().await;
    }
    let mut tick = interval(Duration::from_secs_f64(1.0 / options.expire_per_second));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let id = ids[rand::rng().random_range(0..ids.len())];
        // A Redis that is away is part of the show.
        *expired += keys.remove(&[id]).await.unwrap_or(0);
    }
}

/// What ended in one second.
struct Bin {
    answers: Tally,
    latency: Recorder,
}

impl Bin {
    fn summary(&self) -> Second {
        Second { answers: self.answers, latency: self.latency.summary(), ..Second::default() }
    }
}

struct State {
    overall: Recorder,
    seconds: Vec<Bin>,
}

/// The source of a steady load.
struct Steady {
    strategy: Option<ReadStrategy>,
    ids: Box<[u64]>,
    zipf: Zipf,
    absent: f64,
    rate: Option<f64>,
    begin: Instant,
    end: Instant,
    next: AtomicU64,
    state: Mutex<State>,
}

impl Steady {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Source for Steady {
    fn next(&self, _target: usize) -> Option<Job> {
        let due = match self.rate {
            Some(rate) => due(self.begin, self.next.fetch_add(1, Ordering::Relaxed), rate),
            None => Instant::now(),
        };
        // An open loop that cannot keep its rate ends late, but not for ever.
        let over = self.end + (self.end - self.begin).min(Duration::from_secs(10));
        if due >= self.end || Instant::now() >= over {
            return None;
        }
        let mut rng = rand::rng();
        let id = if self.ids.is_empty() || rng.random::<f64>() < self.absent {
            rng.random_range(ABSENT)
        } else {
            self.ids[self.zipf.draw(&mut rng)]
        };
        Some(Job { id, call: read_strategy::read(self.strategy, id), due: self.rate.map(|_| due) })
    }

    fn ended(&self, read: Read) {
        let second = read.ended.saturating_duration_since(self.begin).as_secs() as usize;
        let mut state = self.state();
        while state.seconds.len() <= second {
            // Two digits: there may be thousands of seconds.
            state.seconds.push(Bin { answers: Tally::default(), latency: Recorder::new(2) });
        }
        state.seconds[second].answers.count(&read.answer);
        state.seconds[second].latency.record(read.latency());
        state.overall.record(read.latency());
    }
}
