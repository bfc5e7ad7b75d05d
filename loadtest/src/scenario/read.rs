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

use rand::Rng;
use serde::Serialize;
use tokio::time::{MissedTickBehavior, interval, sleep};

use self::judge::judge;
use super::standing::{Outcome, Standing};
use crate::reads::{
    Layers, Nodes, Read, Readers, RedisKeys, ShopTable, Source, Way,
    answer::Tally,
    pace::{Zipf, due},
    readers::Job,
    shops::Temporary,
    way,
};
use workload::{
    Access, Error, Target,
    latency::{Latency, Recorder},
    live::Progress,
};

pub mod judge;
mod show;

/// Ids that do not exist, of which there is a fixed number, so that they can be cleaned up after.
const ABSENT: std::ops::Range<u64> = 5_000_000_000_000..5_000_000_001_000;
/// How long the clean-up waits for a server that is away.
const CLEAN_UP: Duration = Duration::from_secs(15);

/// Reads to make.
#[derive(Debug, Clone)]
pub struct ReadOptions {
    /// Servers and secrets.
    pub access: Access,
    /// The instances, asked in turn.
    pub targets: Vec<Target>,
    /// How long.
    pub duration: Duration,
    /// Requests per second, over all instances; `None`: a closed loop.
    pub rate: Option<f64>,
    /// Keep-alive connections per instance.
    pub connections: usize,
    /// Different shops; temporary ones are made where the table has fewer.
    pub ids: u64,
    /// Skew of Zipf's law over them; 0: all alike.
    pub zipf: f64,
    /// Share of requests for ids that do not exist, 0…1.
    pub absent: f64,
    /// Keys removed from Redis per second.
    pub expire_per_second: f64,
    /// The policy; `None`: the configured one.
    pub way: Option<Way>,
    /// Seconds with failures that are allowed.
    pub tolerate_seconds: usize,
    /// Time limit of one read.
    pub timeout: Duration,
    /// Where progress goes.
    pub progress: Progress,
}

impl ReadOptions {
    /// Silent; 20 s of a closed loop over 1,000 shops, 1 % absent, 20 keys removed per second.
    pub fn new(access: Access, targets: Vec<Target>) -> Self {
        Self {
            access,
            targets,
            duration: Duration::from_secs(20),
            rate: None,
            connections: 64,
            ids: 1000,
            zipf: 1.0,
            absent: 0.01,
            expire_per_second: 20.0,
            way: None,
            tolerate_seconds: 0,
            timeout: Duration::from_secs(10),
            progress: Progress::Silent,
        }
    }
}

/// One second of a run.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Second {
    /// Its answers.
    pub answers: Tally,
    /// Latency of the reads that ended in it.
    pub latency: Latency,
    /// Who answered, by the service's metrics; `None`: an instance did not tell in time.
    pub layers: Option<Layers>,
    /// Instances that had given Redis up at its end.
    pub breakers_open: Option<u64>,
}

/// Reads that were made and judged.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Always `read`.
    pub scenario: &'static str,
    /// The instances.
    pub targets: Vec<String>,
    /// The policy, or `the configured one`.
    pub policy: String,
    /// Requests per second asked for.
    pub rate: Option<f64>,
    /// Connections, over all instances.
    pub connections: usize,
    /// Different shops.
    pub ids: usize,
    /// Skew of Zipf's law over them.
    pub zipf: f64,
    /// Share of requests for ids that do not exist.
    pub absent: f64,
    /// From the first request to the last answer, in seconds.
    pub elapsed_s: f64,
    /// Answers per second.
    pub requests_per_s: f64,
    /// Requests of an open loop that were never sent because all connections were busy.
    pub unsent: u64,
    /// All answers.
    pub answers: Tally,
    /// Latency of all reads: from the due time in an open loop, from sending in a closed one.
    pub latency: Latency,
    /// Who answered, by the service's metrics.
    pub layers: Layers,
    /// Keys removed from Redis meanwhile.
    pub expired: u64,
    /// Second by second.
    pub timeline: Vec<Second>,
    /// Seconds with failures that were allowed.
    pub tolerate_seconds: usize,
    /// The judgement.
    pub standing: Standing,
    /// What it amounts to.
    pub outcome: Outcome,
}

/// Reads, and removes what it made.
///
/// # Errors
/// A [`Error`] of the set-up.
pub async fn run(options: &ReadOptions) -> Result<Report, Error> {
    let table = ShopTable::open(&options.access.database_url).await?;
    let keys = RedisKeys::open(&options.access).await?;
    let mut ids = table.ids(options.ids).await?;
    let missing = options.ids.saturating_sub(ids.len() as u64);
    let mut temporary = None;
    if missing > 0 {
        options.progress.say(&format!("making {missing} temporary shops"));
        let shops = table.make_temporary(missing).await?;
        ids.extend(&shops.ids);
        temporary = Some(shops);
    }
    let measured = measure(options, &keys, &ids).await;
    // Whatever happened: what was made is removed, and a server that was broken may come back.
    let give_up = Instant::now() + CLEAN_UP;
    loop {
        match clean_up(&keys, temporary.as_ref()).await {
            Ok(()) => break,
            Err(fault) if Instant::now() > give_up => {
                options.progress.say(&format!("not all was cleaned up: {fault}"));
                break;
            }
            Err(_) => sleep(Duration::from_millis(500)).await,
        }
    }
    measured
}

async fn clean_up(keys: &RedisKeys, temporary: Option<&Temporary>) -> Result<(), Error> {
    if let Some(shops) = temporary {
        // Rows first, so that nobody caches them again.
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
    // The filter does not know rows it was not told of; it is filled anew, with them.
    keys.drop_filters(&keys.filters().await?).await?;
    let mut readers = Readers::open(&options.targets, options.connections, options.timeout).await?;
    let mut nodes = Nodes::new(&options.targets);
    let before = nodes.layers().await?;
    let steady = Arc::new(Steady {
        way: options.way,
        zipf: Zipf::new(ids.len(), options.zipf),
        ids: ids.into(),
        absent: options.absent,
        rate: options.rate,
        begin: Instant::now(),
        end: Instant::now() + options.duration,
        next: AtomicU64::new(0),
        state: Mutex::new(State { overall: Recorder::new(3), seconds: Vec::new() }),
    });
    let mut expired = 0;
    let mut told = vec![Told { layers: Some(before), breakers_open: None }];
    let watching = watch(options, &steady, &mut nodes, &mut told);
    let expiring = expire(options, keys, ids, &mut expired);
    let drained = tokio::select! {
        drained = readers.drain(&steady) => drained,
        () = async { tokio::join!(watching, expiring); } => Ok(()),
    };
    drained?;
    let elapsed = steady.begin.elapsed().as_secs_f64();
    // What was told last counts where an instance is away at the end.
    told.push(Told::by(&mut Nodes::new(&options.targets)).await);
    let last = told.iter().rev().find_map(|told| told.layers).unwrap_or(before);
    let layers = last.since(before);
    let state = steady.state();
    let mut timeline: Vec<_> = state.seconds.iter().map(Bin::summary).collect();
    for (second, pair) in timeline.iter_mut().zip(told.windows(2)) {
        (second.layers, second.breakers_open) = (pair[1].since(&pair[0]), pair[1].breakers_open);
    }
    let mut answers = Tally::default();
    state.seconds.iter().for_each(|bin| answers.add(&bin.answers));
    let due = options.rate.map_or(0, |rate| (rate * options.duration.as_secs_f64()) as u64);
    let mut report = Report {
        scenario: "read",
        targets: options.targets.iter().map(Target::to_string).collect(),
        policy: options.way.map_or("the configured one", Way::name).to_owned(),
        rate: options.rate,
        connections: readers.len(),
        ids: ids.len(),
        zipf: options.zipf,
        absent: options.absent,
        elapsed_s: elapsed,
        requests_per_s: answers.total() as f64 / elapsed.max(1e-6),
        unsent: due.saturating_sub(answers.total()),
        answers,
        latency: state.overall.summary(),
        layers,
        expired,
        timeline,
        tolerate_seconds: options.tolerate_seconds,
        standing: Standing::Holds,
        outcome: Outcome::Clean,
    };
    report.standing = judge(&report);
    report.outcome = Outcome::of([&report.standing]);
    Ok(report)
}

/// What the metrics told at the end of a second.
#[derive(Default)]
struct Told {
    layers: Option<Layers>,
    breakers_open: Option<u64>,
}

impl Told {
    /// Nothing, where an instance cannot tell.
    async fn by(nodes: &mut Nodes) -> Self {
        let Ok(pages) = nodes.pages().await else { return Self::default() };
        let breakers: Result<Vec<_>, _> =
            pages.iter().map(|page| page.get("cache_breaker_open")).collect();
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
async fn watch(options: &ReadOptions, steady: &Steady, nodes: &mut Nodes, told: &mut Vec<Told>) {
    let mut tick = interval(Duration::from_secs(1));
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    tick.tick().await;
    loop {
        tick.tick().await;
        told.push(Told::by(nodes).await);
        let [.., before, now] = told.as_slice() else { continue };
        let number = told.len() - 2;
        let second = steady.state().seconds.get(number).map(Bin::summary).unwrap_or_default();
        let layers = now.since(before);
        let line =
            show::progress(number, &Second { layers, breakers_open: now.breakers_open, ..second });
        options.progress.say(&line);
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
    way: Option<Way>,
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
        Some(Job { id, call: way::read(self.way, id), due: self.rate.map(|_| due) })
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
