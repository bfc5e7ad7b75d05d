//! A hot key expires in mid-run: a shop is read at a steady rate, first by plain cache-aside, then under the rebuild mutex.
//! The queries that reach the database are counted all the while, so that the lab can plot them over time.
//!
//! A query for one row takes well below a millisecond, too little for many readers to miss the key meanwhile. So the table
//! is locked first, as in the [`stampede`](super::stampede), and only then the key expires: a visitor who reads the shop
//! before, by a strategy that refreshes a key ahead of its expiry, changes nothing.

use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};

use serde::Serialize;
use tokio::time::{sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use workload::{Environment, Error, driver::Connections, live::Live};

use super::{
    reads::{self, Answer},
    stage::Stage,
};

/// The read strategies, by the service's names for them.
const STRATEGIES: [&str; 2] = ["cache-aside", "mutex"];
/// Reads per second, over all instances.
const RATE: u32 = 400;
/// How long each strategy is read.
const LENGTH: Duration = Duration::from_millis(4500);
/// When the table is locked and the key expires.
const EXPIRY: Duration = Duration::from_secs(2);
/// How long the table is locked.
const SLOW_QUERY: Duration = Duration::from_millis(500);
/// Connections of the readers, over all instances: more than the reads that wait for a slow query.
const CONNECTIONS: u32 = 320;
const SAMPLE_EVERY: Duration = Duration::from_millis(100);
/// Time to prepare the reads, before the first is due.
const LEAD: Duration = Duration::from_millis(200);

/// What was seen of one strategy. Moments are seconds since the first read.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Lane {
    strategy: &'static str,
    /// The last one is taken when all reads are answered.
    samples: Vec<Sample>,
    expired_at: f64,
    /// Until then the table was locked.
    unlocked_at: f64,
    reads: usize,
    /// Reads that did not get the shop.
    failed: usize,
    slowest_ms: f64,
}

/// What was counted since the first read.
#[derive(Debug, Serialize)]
struct Sample {
    at: f64,
    /// Queries for shops, by the instances' own metrics.
    queries: u64,
    /// Statements of all clients, by the database's own count.
    statements: u64,
}

/// Reads the first shop of the table through an expiry, by one strategy after the other.
///
/// # Errors
/// An [`Error`] of the servers, or there is no shop.
pub async fn play(environment: Environment) -> Result<Vec<Lane>, Error> {
    let stage = Stage::open(environment, &CancellationToken::new()).await?;
    let shop = stage.table.first().await?;
    let each = CONNECTIONS / (stage.nodes.len() as u32).max(1);
    let mut readers = stage.connect(each).await?;
    let mut lanes = Vec::new();
    for strategy in STRATEGIES {
        lanes.push(read_through_expiry(&stage, &mut readers, strategy, shop).await?);
    }
    Ok(lanes)
}

async fn read_through_expiry(
    stage: &Stage,
    readers: &mut Connections,
    strategy: &'static str,
    shop: u64,
) -> Result<Lane, Error> {
    stage.keys.remove(&[shop]).await?;
    stage
        .read(readers, Some(strategy), vec![shop], None)
        .await?;
    let before = stage.counters().await?;
    let begin = Instant::now() + LEAD;
    let due = (0..).map(move |number| begin + number * Duration::from_secs(1) / RATE);
    let due = due.take_while(move |due| *due < begin + LENGTH);
    let live = Arc::new(Live::default());
    let reading = reads::read(
        readers,
        Some(strategy),
        &live,
        due.map(move |due| (shop, Some(due))),
    );
    let expiring = async {
        sleep_until((begin + EXPIRY).into()).await;
        stage.table.lock().await?;
        stage.keys.expire(shop).await?;
        let expired_at = begin.elapsed().as_secs_f64();
        sleep(SLOW_QUERY).await;
        stage.table.unlock().await?;
        Ok((expired_at, begin.elapsed().as_secs_f64()))
    };
    let mut samples = vec![Sample {
        at: 0.0,
        queries: 0,
        statements: 0,
    }];
    let (reads, (expired_at, unlocked_at)) = tokio::select! {
        done = async { tokio::try_join!(reading, expiring) } => done?,
        sampled = keep_sampling(stage, before, begin, &mut samples) => match sampled? {},
    };
    samples.push(sample(stage, before, begin).await?);
    let failed = reads.iter().filter(|read| read.answer != Answer::Shop);
    let slowest = reads.iter().map(|read| read.latency).max();
    Ok(Lane {
        strategy,
        samples,
        expired_at,
        unlocked_at,
        reads: reads.len(),
        failed: failed.count(),
        slowest_ms: slowest.unwrap_or_default().as_secs_f64() * 1e3,
    })
}

/// Takes samples until it is dropped.
async fn keep_sampling(
    stage: &Stage,
    before: [u64; 4],
    begin: Instant,
    samples: &mut Vec<Sample>,
) -> Result<Infallible, Error> {
    let mut next = begin;
    loop {
        next += SAMPLE_EVERY;
        sleep_until(next.into()).await;
        samples.push(sample(stage, before, begin).await?);
    }
}

async fn sample(stage: &Stage, before: [u64; 4], begin: Instant) -> Result<Sample, Error> {
    let now = stage.counters().await?;
    let [queries, _, _, statements] =
        [0, 1, 2, 3].map(|index| now[index].saturating_sub(before[index]));
    Ok(Sample {
        at: begin.elapsed().as_secs_f64(),
        queries,
        statements,
    })
}
