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

use clap::{Args, value_parser};

use self::{
    check::{check, spread},
    report::Report,
};
use crate::{
    options::Instances,
    reads::{
        Read, ReadStrategy, Readers, RedisKeys, ShopTable, Source, answer::Tally, read_strategy,
        readers::Job,
    },
};
use workload::{Error, latency::Latency, live::Live};

pub mod check;
pub mod report;

/// Time limit of one read.
const READ_LIMIT: Duration = Duration::from_secs(10);

/// Options of an avalanche.
#[derive(Debug, Clone, Args)]
pub struct AvalancheOptions {
    /// Temporary shops, each with a key of its own
    #[arg(long, default_value_t = 10_000, value_parser = value_parser!(u64).range(1..=1_000_000))]
    pub keys: u64,
    /// Keep-alive connections per instance
    #[arg(long, default_value_t = 64, value_parser = value_parser!(u32).range(1..=10_000))]
    pub connections: u32,
    /// The time to live around which the service spreads, in seconds
    #[arg(long, default_value_t = 1800, value_name = "SECONDS",
          value_parser = value_parser!(u64).range(1..=10_000_000))]
    pub ttl: u64,
    /// The read strategy [default: the configured one]
    #[arg(long, alias = "policy", value_name = "NAME")]
    pub read_strategy: Option<ReadStrategy>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub instances: Instances,
}

/// Measures, and removes what it made.
///
/// # Errors
/// An [`Error`] of the set-up.
pub async fn run(options: &AvalancheOptions) -> Result<Report, Error> {
    if options.read_strategy == Some(ReadStrategy::LogicalExpiry) {
        return Err(Error::Usage(
            "keys with a logical expiry never leave: use another read strategy".into(),
        ));
    }
    let table = ShopTable::open(&options.instances.access.database_url).await?;
    let keys = RedisKeys::open(&options.instances.access).await?;
    options.instances.progress.say(&format!("making {} temporary shops", options.keys));
    let shops = table.make_temporary(options.keys).await?;
    let measured = measure(options, &keys, &shops.ids).await;
    // Whatever happened: rows first, so that they are not cached again.
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
    // The filter does not know the new rows; it is filled anew, with them.
    keys.drop_filters(&keys.filters().await?).await?;
    keys.remove(ids).await?;
    let mut readers =
        Readers::open(&options.instances.targets, options.connections, READ_LIMIT).await?;
    let once = Arc::new(Once {
        strategy: options.read_strategy,
        ids: ids.into(),
        next: AtomicUsize::new(0),
        reads: Mutex::default(),
        live: Live::default(),
    });
    let begin = Instant::now();
    let reading = readers.drain(&once);
    options.instances.progress.watch("first reads", ids.len() as u64, &once.live, reading).await?;
    let elapsed = begin.elapsed();
    let reads = std::mem::take(&mut *once.reads.lock().unwrap_or_else(PoisonError::into_inner));

    options.instances.progress.say("reading the times to live");
    let jittered = spread(&keys.expiries(ids).await?);
    let ttl_ms = i64::try_from(1000 * options.ttl).unwrap_or(i64::MAX);
    let instants: Vec<_> = reads
        .iter()
        .map(|read| read.ended.saturating_duration_since(begin).as_millis() as i64 + ttl_ms)
        .collect();
    let exact_calculated = spread(&instants);
    keys.set_ttl(ids, Duration::from_secs(options.ttl)).await?;
    let exact_set = spread(&keys.expiries(ids).await?);

    let answers = Tally::of(reads.iter().map(|read| &read.answer));
    let check = check(ids.len() as u64, &answers, &jittered, &exact_calculated, &exact_set);
    Ok(Report {
        scenario: "avalanche",
        targets: options.instances.urls(),
        read_strategy: read_strategy::name(options.read_strategy),
        keys: ids.len() as u64,
        ttl_s: options.ttl,
        elapsed_s: elapsed.as_secs_f64(),
        latency: Latency::of(reads.iter().map(Read::latency)),
        answers,
        jittered,
        exact_calculated,
        exact_set,
        check,
    })
}

/// Every id once.
struct Once {
    strategy: Option<ReadStrategy>,
    ids: Box<[u64]>,
    next: AtomicUsize,
    reads: Mutex<Vec<Read>>,
    live: Live,
}

impl Source for Once {
    fn next(&self, _target: usize) -> Option<Job> {
        let id = *self.ids.get(self.next.fetch_add(1, Ordering::Relaxed))?;
        Some(Job { id, call: read_strategy::read(self.strategy, id), due: None })
    }

    fn ended(&self, read: Read) {
        self.live.count(false);
        self.reads.lock().unwrap_or_else(PoisonError::into_inner).push(read);
    }
}
