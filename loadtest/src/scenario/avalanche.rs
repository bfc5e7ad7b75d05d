//! The avalanche: keys that were stored together expire together, and all of their readers reach
//! the database in the same second. The cure is a random share in each time to live (*jitter*).
//!
//! Temporary shops are put into the table, each is read once through the service, and the times to
//! live that the service gave are read from Redis. What would have been without jitter is made two
//! ways, and the milder of them is compared with: by calculation (each key's store instant, taken
//! as the end of its read, plus the exact time to live), and for real (the tool gives all keys that
//! very time to live, in one pipeline, and reads them again). Keys and shops are then removed.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use serde::Serialize;

use self::judge::{Spread, judge, spread};
use super::standing::{Outcome, Standing};
use crate::reads::{
    Read, Readers, RedisKeys, ShopTable, Source, Way, answer::Tally, readers::Job, way,
};
use workload::{
    Access, Error, Target,
    latency::Latency,
    live::{Live, Progress},
};

pub mod judge;
mod show;

/// Time limit of one read.
const READ_LIMIT: Duration = Duration::from_secs(10);

/// An avalanche to measure.
#[derive(Debug, Clone)]
pub struct AvalancheOptions {
    /// Servers and secrets.
    pub access: Access,
    /// The instances, asked in turn.
    pub targets: Vec<Target>,
    /// How many shops.
    pub keys: u64,
    /// Keep-alive connections per instance.
    pub connections: usize,
    /// The policy; `None`: the configured one.
    pub way: Option<Way>,
    /// The time to live around which the service spreads.
    pub ttl: Duration,
    /// Where progress goes.
    pub progress: Progress,
}

impl AvalancheOptions {
    /// Silent; 10,000 keys around 30 minutes, by the configured policy.
    pub fn new(access: Access, targets: Vec<Target>) -> Self {
        Self {
            access,
            targets,
            keys: 10_000,
            connections: 64,
            way: None,
            ttl: Duration::from_secs(30 * 60),
            progress: Progress::Silent,
        }
    }
}

/// An avalanche that was measured and judged.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Always `avalanche`.
    pub scenario: &'static str,
    /// The instances.
    pub targets: Vec<String>,
    /// The policy, or `the configured one`.
    pub policy: String,
    /// Shops that were read.
    pub keys: u64,
    /// The exact time to live compared with, in seconds.
    pub ttl_s: u64,
    /// How long it took to read all of them, in seconds.
    pub elapsed_s: f64,
    /// Latency of those reads.
    pub latency: Latency,
    /// Their answers.
    pub answers: Tally,
    /// The service's times to live, as Redis has them.
    pub jittered: Spread,
    /// Calculated: store instants plus the exact time to live.
    pub exact_calculated: Spread,
    /// For real: the exact time to live, set by this tool in one pipeline.
    pub exact_set: Spread,
    /// The judgement.
    pub standing: Standing,
    /// What it amounts to.
    pub outcome: Outcome,
}

/// Measures, and removes what it made.
///
/// # Errors
/// A [`Error`] of the set-up.
pub async fn run(options: &AvalancheOptions) -> Result<Report, Error> {
    if options.way == Some(Way::LogicalExpiry) {
        return Err(Error::Usage(
            "keys with a logical expiry never leave: use another policy".into(),
        ));
    }
    let table = ShopTable::open(&options.access.database_url).await?;
    let keys = RedisKeys::open(&options.access).await?;
    options.progress.say(&format!("making {} temporary shops", options.keys));
    let shops = table.make_temporary(options.keys).await?;
    let measured = measure(options, &keys, &shops.ids).await;
    // Whatever happened: rows first, so that nobody caches them again.
    let removed = shops.remove().await;
    let cleaned = async {
        keys.remove(&shops.ids).await?;
        keys.drop_filters(&keys.filters().await?).await
    };
    let cleaned = cleaned.await;
    let report = measured?;
    removed.and(cleaned)?;
    Ok(report)
}

async fn measure(
    options: &AvalancheOptions,
    keys: &RedisKeys,
    ids: &[u64],
) -> Result<Report, Error> {
    // The filter does not know rows it was not told of; it is filled anew, with them.
    keys.drop_filters(&keys.filters().await?).await?;
    keys.remove(ids).await?;
    let mut readers = Readers::open(&options.targets, options.connections, READ_LIMIT).await?;
    let once = Arc::new(Once {
        way: options.way,
        ids: ids.into(),
        next: AtomicUsize::new(0),
        reads: Mutex::default(),
        live: Live::default(),
    });
    let begin = Instant::now();
    let reading = readers.drain(&once);
    options.progress.watch("first reads", ids.len() as u64, &once.live, reading).await?;
    let elapsed = begin.elapsed();
    let reads = std::mem::take(&mut *once.reads.lock().unwrap_or_else(PoisonError::into_inner));

    options.progress.say("reading the times to live");
    let jittered = spread(&keys.expiries(ids).await?);
    let ttl_ms = options.ttl.as_millis() as i64;
    let instants: Vec<_> = reads
        .iter()
        .map(|read| read.ended.saturating_duration_since(begin).as_millis() as i64 + ttl_ms)
        .collect();
    let exact_calculated = spread(&instants);
    keys.set_ttl(ids, options.ttl).await?;
    let exact_set = spread(&keys.expiries(ids).await?);

    let answers = Tally::of(reads.iter().map(|read| &read.answer));
    let standing = judge(ids.len() as u64, &answers, &jittered, &exact_calculated, &exact_set);
    Ok(Report {
        scenario: "avalanche",
        targets: options.targets.iter().map(Target::to_string).collect(),
        policy: options.way.map_or("the configured one", Way::name).to_owned(),
        keys: ids.len() as u64,
        ttl_s: options.ttl.as_secs(),
        elapsed_s: elapsed.as_secs_f64(),
        latency: Latency::of(reads.iter().map(Read::latency)),
        answers,
        jittered,
        exact_calculated,
        exact_set,
        outcome: Outcome::of([&standing]),
        standing,
    })
}

/// Every id once.
struct Once {
    way: Option<Way>,
    ids: Box<[u64]>,
    next: AtomicUsize,
    reads: Mutex<Vec<Read>>,
    live: Live,
}

impl Source for Once {
    fn next(&self, _target: usize) -> Option<Job> {
        let id = *self.ids.get(self.next.fetch_add(1, Ordering::Relaxed))?;
        Some(Job { id, call: way::read(self.way, id), due: None })
    }

    fn ended(&self, read: Read) {
        self.live.count(false);
        self.reads.lock().unwrap_or_else(PoisonError::into_inner).push(read);
    }
}
