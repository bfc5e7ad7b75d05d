//! Penetration: a crawler asks for ids that do not exist, which no cache of values can answer.
//!
//! Three passes over random ids that are in no table:
//! 1. `layered`, behind the Bloom filter, every id once: what the filter lets through is loaded.
//! 2. `null-caching`, every id several times, lap after lap, while the filter is kept away by
//!    deleting it over and over: each id may be loaded once per null's time to live.
//! 3. `cache-aside`, the filter kept away, a tenth of the requests: every one is loaded. This shows
//!    what the other two save, and is not checked.
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

use clap::{Args, value_parser};
use rand::Rng;
use testkit::wait::poll;

use self::{
    check::check,
    report::{Pass, Report},
};
use super::check_result::CheckResult;
use crate::{
    options::{Instances, number},
    reads::{
        Nodes, Read, ReadStrategy, Readers, RedisKeys, ShopTable, Source, answer::Tally,
        readers::Job,
    },
};
use workload::{Error, latency::Latency, live::Live};

pub mod check;
pub mod report;

/// Random ids are taken from here, far above those in use.
const RANGE: std::ops::Range<u64> = 2_000_000_000_000..4_000_000_000_000;
/// Time limit of one read.
const READ_LIMIT: Duration = Duration::from_secs(10);
/// Longest wait for a filter that is being filled.
const FILTER_WAIT: Duration = Duration::from_secs(15);
/// From one look for it to the next.
const FILTER_PAUSE: Duration = Duration::from_millis(200);

/// Options of a penetration run.
#[derive(Debug, Clone, Args)]
pub struct PenetrationOptions {
    /// Requests of each checked pass
    #[arg(long, default_value_t = 100_000, value_parser = value_parser!(u32).range(1..=10_000_000))]
    pub requests: u32,
    /// Distinct ids of the passes without the filter, each asked requests ÷ distinct times
    #[arg(long, default_value_t = 10_000, value_parser = value_parser!(u32).range(1..))]
    pub distinct: u32,
    /// Keep-alive connections per instance
    #[arg(long, default_value_t = 64, value_parser = value_parser!(u32).range(1..=10_000))]
    pub connections: u32,
    /// The filter's stated rate of false positives, above 0 and below 1
    #[arg(long, default_value_t = 0.01, value_name = "RATE", value_parser = share)]
    pub false_positives: f64,
    /// How long a cached null is remembered, in seconds
    #[arg(long, default_value_t = 120, value_name = "SECONDS", value_parser = value_parser!(u64).range(1..))]
    pub null_ttl: u64,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub instances: Instances,
}

fn share(text: &str) -> Result<f64, String> {
    number(text, |number| number > 0.0 && number < 1.0, "above 0 and below 1")
}

/// Makes all passes, and removes what they left in Redis.
///
/// # Errors
/// An [`Error`] of the set-up.
pub async fn run(options: &PenetrationOptions) -> Result<Report, Error> {
    let table = ShopTable::open(&options.instances.access.database_url).await?;
    let keys = RedisKeys::open(&options.instances.access).await?;
    if table.count(RANGE.start, RANGE.end).await? > 0 {
        return Err(Error::Usage(format!(
            "there are shops with ids in {RANGE:?}: use another table"
        )));
    }
    let readers =
        Readers::open(&options.instances.targets, options.connections, READ_LIMIT).await?;
    let nodes = Nodes::new(&options.instances.targets);
    let mut used = Vec::new();
    let mut run = Run { options, table, keys: keys.clone(), nodes, readers };
    let passes = run.passes(&mut used).await;
    // Whatever happened: what was caused is removed.
    let removed = keys.remove(&used).await;
    let (passes, removed) = (passes?, removed?);
    Ok(Report {
        scenario: "penetration",
        targets: options.instances.urls(),
        false_positives: options.false_positives,
        null_ttl_s: options.null_ttl,
        passes,
        removed,
    })
}

struct Run<'a> {
    options: &'a PenetrationOptions,
    table: ShopTable,
    keys: RedisKeys,
    nodes: Nodes,
    readers: Readers,
}

impl Run<'_> {
    async fn passes(&mut self, used: &mut Vec<u64>) -> Result<Vec<Pass>, Error> {
        let PenetrationOptions { requests, distinct, .. } = *self.options;
        let (requests, distinct) = (requests as usize, distinct as usize);
        let fresh = |used: &mut Vec<u64>, count| {
            let ids = random_ids(count, used);
            used.extend_from_slice(&ids);
            ids
        };
        self.await_filter(used).await?;
        let ids = fresh(used, requests);
        let layered = self.pass(ReadStrategy::Layered, true, &ids, requests).await?;

        let keys = self.keys.clone();
        let ids = fresh(used, distinct.min(requests));
        let unfiltered = self.pass(ReadStrategy::NullCaching, false, &ids, requests);
        let nulls = keys.without_filters(unfiltered).await?;

        let ids = fresh(used, distinct.min(requests.div_ceil(10)));
        let naive = self.pass(ReadStrategy::CacheAside, false, &ids, requests.div_ceil(10));
        let naive = keys.without_filters(naive).await?;
        Ok(vec![layered, nulls, naive])
    }

    /// Asks each instance for absent ids until its filter is seen to answer.
    async fn await_filter(&mut self, used: &mut Vec<u64>) -> Result<(), Error> {
        for target in &self.options.instances.targets {
            let one = std::slice::from_ref(target);
            let mut node = Nodes::new(one);
            let mut readers = Readers::open(one, 1, READ_LIMIT).await?;
            let answered = poll(FILTER_WAIT, FILTER_PAUSE, async || {
                let before = node.layers().await?.filtered;
                let id = random_ids(1, used)[0];
                used.push(id);
                readers.burst(id, &ReadStrategy::Layered.read(id), Instant::now()).await?;
                Ok::<_, Error>((node.layers().await?.filtered > before).then_some(()))
            });
            if answered.await?.is_none() {
                return Err(Error::Usage(format!(
                    "no Bloom filter answers on {target}: is it switched off there? (Filters in \
                     Redis: {})",
                    self.keys.filters().await?.join(", ")
                )));
            }
        }
        Ok(())
    }

    async fn pass(
        &mut self,
        strategy: ReadStrategy,
        filter: bool,
        ids: &[u64],
        requests: usize,
    ) -> Result<Pass, Error> {
        self.readers.reopen().await?;
        let layers = self.nodes.layers().await?;
        let statements = self.table.statements().await?;
        let crawl = Arc::new(Crawl {
            strategy,
            ids: ids.into(),
            requests,
            next: AtomicUsize::new(0),
            seen: Mutex::default(),
            live: Live::default(),
        });
        let begin = Instant::now();
        let what = format!("{strategy}, {} ids", ids.len());
        let draining = self.readers.drain(&crawl);
        self.options
            .instances
            .progress
            .watch(&what, requests as u64, &crawl.live, draining)
            .await?;
        let elapsed = begin.elapsed();
        let (answers, latency) = crawl.summary();
        let laps = 1 + (elapsed.as_secs_f64() / self.options.null_ttl as f64) as u64;
        let most_loads = match strategy {
            ReadStrategy::CacheAside => None,
            ReadStrategy::NullCaching => Some(ids.len() as u64 * laps),
            _ => Some((self.options.false_positives * requests as f64) as u64),
        };
        let mut pass = Pass {
            strategy,
            filter,
            requests,
            distinct: ids.len(),
            elapsed_s: elapsed.as_secs_f64(),
            most_loads,
            layers: self.nodes.layers().await?.since(layers),
            statements: self.table.statements().await?.saturating_sub(statements),
            answers,
            latency,
            check: CheckResult::Holds,
        };
        pass.check = check(&pass);
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

/// Reads all ids, lap after lap: two reads of one id are a whole lap apart, so they cannot share a load by having met.
struct Crawl {
    strategy: ReadStrategy,
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
        (index < self.requests).then(|| Job { id, call: self.strategy.read(id), due: None })
    }

    fn ended(&self, read: Read) {
        self.live.count(false);
        let mut seen = self.seen();
        seen.0.count(&read.answer);
        seen.1.push(read.latency());
    }
}
