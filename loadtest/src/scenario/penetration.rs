//! Penetration: a crawler asks for ids that do not exist, which no cache of values can answer.
//!
//! Three passes over random ids that are in nobody's table:
//! 1. `layered`, behind the Bloom filter, every id once: what the filter lets through is loaded.
//! 2. `null-caching`, every id several times, lap after lap, while the filter is kept away by
//!    deleting it over and over: each id may be loaded once per null's time to live.
//! 3. `cache-aside`, the filter kept away, a tenth of the requests: every one is loaded. This shows
//!    what the other two save, and is not judged.
//!
//! The cached nulls that came of it are removed afterwards, by their ids.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use rand::Rng;
use serde::Serialize;
use tokio::time::sleep;

use self::judge::judge;
use super::standing::{Outcome, Standing};
use crate::reads::{
    Layers, Nodes, Read, Readers, RedisKeys, ShopTable, Source, Way, answer::Tally, readers::Job,
};
use workload::{
    Access, Error, Target,
    latency::Latency,
    live::{Live, Progress},
};

pub mod judge;
mod show;

/// Random ids are taken from here, far above those in use.
const RANGE: std::ops::Range<u64> = 2_000_000_000_000..4_000_000_000_000;
/// Time limit of one read.
const READ_LIMIT: Duration = Duration::from_secs(10);
/// Longest wait for a filter that is being filled.
const FILTER_WAIT: Duration = Duration::from_secs(15);

/// A crawl to make.
#[derive(Debug, Clone)]
pub struct PenetrationOptions {
    /// Servers and secrets.
    pub access: Access,
    /// The instances, asked in turn.
    pub targets: Vec<Target>,
    /// Requests of each judged pass.
    pub requests: usize,
    /// Distinct ids of the pass without the filter.
    pub distinct: usize,
    /// Keep-alive connections per instance.
    pub connections: usize,
    /// The filter's stated rate of false positives.
    pub false_positives: f64,
    /// How long a cached null is remembered.
    pub null_ttl: Duration,
    /// Where progress goes.
    pub progress: Progress,
}

impl PenetrationOptions {
    /// Silent; 100,000 requests, 10,000 ids without the filter, a rate of 1 %, nulls of 2 minutes.
    pub fn new(access: Access, targets: Vec<Target>) -> Self {
        Self {
            access,
            targets,
            requests: 100_000,
            distinct: 10_000,
            connections: 64,
            false_positives: 0.01,
            null_ttl: Duration::from_secs(120),
            progress: Progress::Silent,
        }
    }
}

/// One pass, judged.
#[derive(Debug, Clone, Serialize)]
pub struct Pass {
    /// The policy.
    pub way: Way,
    /// Whether the filter was there.
    pub filter: bool,
    /// Requests made.
    pub requests: usize,
    /// Different ids among them.
    pub distinct: usize,
    /// How long it took, in seconds.
    pub elapsed_s: f64,
    /// Most loads it may cause; `None`: as many as it likes.
    pub most_loads: Option<u64>,
    /// Who answered, by the service's metrics.
    pub layers: Layers,
    /// Prepared statements the database executed meanwhile.
    pub statements: u64,
    /// The answers.
    pub answers: Tally,
    /// Latency of all reads.
    pub latency: Latency,
    /// The judgement.
    pub standing: Standing,
}

/// A crawl that was made and judged.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Always `penetration`.
    pub scenario: &'static str,
    /// The instances.
    pub targets: Vec<String>,
    /// The filter's stated rate of false positives.
    pub false_positives: f64,
    /// How long a cached null is remembered, in seconds.
    pub null_ttl_s: u64,
    /// The passes.
    pub passes: Vec<Pass>,
    /// Cached nulls removed afterwards.
    pub removed: u64,
    /// What it amounts to.
    pub outcome: Outcome,
}

/// Makes all passes, and removes what they left in Redis.
///
/// # Errors
/// A [`Error`] of the set-up.
pub async fn run(options: &PenetrationOptions) -> Result<Report, Error> {
    let table = ShopTable::open(&options.access.database_url).await?;
    let keys = RedisKeys::open(&options.access).await?;
    if table.count(RANGE.start, RANGE.end).await? > 0 {
        return Err(Error::Usage(format!(
            "there are shops with ids in {RANGE:?}: use another table"
        )));
    }
    let readers = Readers::open(&options.targets, options.connections, READ_LIMIT).await?;
    let nodes = Nodes::new(&options.targets);
    let mut used = Vec::new();
    let mut stage = Stage { options, table, keys: keys.clone(), nodes, readers };
    let passes = stage.passes(&mut used).await;
    // Whatever happened: what was caused is removed.
    let removed = keys.remove(&used).await;
    let (passes, removed) = (passes?, removed?);
    Ok(Report {
        scenario: "penetration",
        targets: options.targets.iter().map(Target::to_string).collect(),
        false_positives: options.false_positives,
        null_ttl_s: options.null_ttl.as_secs(),
        outcome: Outcome::of(passes.iter().map(|pass| &pass.standing)),
        passes,
        removed,
    })
}

struct Stage<'a> {
    options: &'a PenetrationOptions,
    table: ShopTable,
    keys: RedisKeys,
    nodes: Nodes,
    readers: Readers,
}

impl Stage<'_> {
    async fn passes(&mut self, used: &mut Vec<u64>) -> Result<Vec<Pass>, Error> {
        let PenetrationOptions { requests, distinct, .. } = *self.options;
        let fresh = |used: &mut Vec<u64>, count| {
            let ids = random_ids(count, used);
            used.extend_from_slice(&ids);
            ids
        };
        self.await_filter(used).await?;
        let ids = fresh(used, requests);
        let layered = self.pass(Way::Layered, true, &ids, requests).await?;

        let keys = self.keys.clone();
        let ids = fresh(used, distinct.min(requests));
        let unfiltered = self.pass(Way::NullCaching, false, &ids, requests);
        let nulls = keys.without_filters(unfiltered).await?;

        let ids = fresh(used, distinct.min(requests.div_ceil(10)));
        let naive = self.pass(Way::CacheAside, false, &ids, requests.div_ceil(10));
        let naive = keys.without_filters(naive).await?;
        Ok(vec![layered, nulls, naive])
    }

    /// Asks each instance for absent ids until its filter is seen to answer.
    async fn await_filter(&mut self, used: &mut Vec<u64>) -> Result<(), Error> {
        let give_up = Instant::now() + FILTER_WAIT;
        for target in &self.options.targets {
            let one = std::slice::from_ref(target);
            let mut node = Nodes::new(one);
            let mut readers = Readers::open(one, 1, READ_LIMIT).await?;
            loop {
                let before = node.layers().await?.filtered;
                let ids = random_ids(1, used);
                used.extend_from_slice(&ids);
                readers.burst(ids[0], &Way::Layered.read(ids[0]), Instant::now()).await?;
                if node.layers().await?.filtered > before {
                    break;
                }
                if Instant::now() > give_up {
                    return Err(Error::Usage(format!(
                        "no Bloom filter answers on {target}: is it switched off there? (Filters in \
                         Redis: {})",
                        self.keys.filters().await?.join(", ")
                    )));
                }
                sleep(Duration::from_millis(200)).await;
            }
        }
        Ok(())
    }

    async fn pass(
        &mut self,
        way: Way,
        filter: bool,
        ids: &[u64],
        requests: usize,
    ) -> Result<Pass, Error> {
        self.readers.reopen().await?;
        let layers = self.nodes.layers().await?;
        let statements = self.table.statements().await?;
        let crawl = Arc::new(Crawl {
            way,
            ids: ids.into(),
            requests,
            next: AtomicUsize::new(0),
            seen: Mutex::default(),
            live: Live::default(),
        });
        let begin = Instant::now();
        let what = format!("{way}, {} ids", ids.len());
        let draining = self.readers.drain(&crawl);
        self.options.progress.watch(&what, requests as u64, &crawl.live, draining).await?;
        let elapsed = begin.elapsed();
        let (answers, latency) = crawl.summary();
        let laps = 1 + (elapsed.as_secs_f64() / self.options.null_ttl.as_secs_f64()) as u64;
        let most_loads = match way {
            Way::CacheAside => None,
            Way::NullCaching => Some(ids.len() as u64 * laps),
            _ => Some((self.options.false_positives * requests as f64) as u64),
        };
        let mut pass = Pass {
            way,
            filter,
            requests,
            distinct: ids.len(),
            elapsed_s: elapsed.as_secs_f64(),
            most_loads,
            layers: self.nodes.layers().await?.since(layers),
            statements: self.table.statements().await?.saturating_sub(statements),
            answers,
            latency,
            standing: Standing::Holds,
        };
        pass.standing = judge(&pass);
        Ok(pass)
    }
}

/// So many different ids that are not in `used`.
fn random_ids(count: usize, used: &[u64]) -> Vec<u64> {
    let mut taken: HashSet<u64> = used.iter().copied().collect();
    let mut rng = rand::rng();
    let mut ids = Vec::with_capacity(count);
    while ids.len() < count {
        let id = rng.random_range(RANGE);
        if taken.insert(id) {
            ids.push(id);
        }
    }
    ids
}

/// Lap after lap over the ids: two reads of one id are a whole lap apart, so that nobody can blame
/// a second load on the two having met.
struct Crawl {
    way: Way,
    ids: Box<[u64]>,
    requests: usize,
    next: AtomicUsize,
    seen: Mutex<(Tally, Vec<Duration>)>,
    live: Live,
}

impl Crawl {
    fn seen(&self) -> MutexGuard<'_, (Tally, Vec<Duration>)> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn summary(&self) -> (Tally, Latency) {
        let seen = self.seen();
        (seen.0, Latency::of(seen.1.iter().copied()))
    }
}

impl Source for Crawl {
    fn next(&self, _target: usize) -> Option<Job> {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        let id = *self.ids.get(index % self.ids.len().max(1))?;
        (index < self.requests).then(|| Job { id, call: self.way.read(id), due: None })
    }

    fn ended(&self, read: Read) {
        self.live.count(false);
        let mut seen = self.seen();
        seen.0.count(&read.answer);
        seen.1.push(read.latency());
    }
}
