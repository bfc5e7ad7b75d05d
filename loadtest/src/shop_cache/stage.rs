//! What a case is, and what it works with: the instances and the servers behind them. What reads of shops cost there is known
//! by two independent counts: the instances' own metrics (`GET /metrics`, Prometheus text format 0.0.4), and the statements
//! that the database says it has executed.

use std::time::{Duration, Instant};

use clap::Args;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use workload::{
    Access, Error, Target,
    driver::Connections,
    http::{Call, Connection},
    live::Progress,
};

use super::{
    keys::RedisKeys,
    reads::{LIMIT, ReadStrategy, read_all},
    shops::ShopTable,
};
use crate::report::{Check, Checked};

/// Connections of the readers to each instance, in most cases.
pub const CONNECTIONS: u32 = 64;
/// Counters in the metrics of an instance: reads that the Bloom filter answered, loads, reads for which Redis could not be
/// asked, and reads whose value Redis did not store.
const SERIES: [&str; 4] = [
    "seckill_cache_hits_total{cache=\"shop\",layer=\"filter\"}",
    "seckill_cache_loads_total{cache=\"shop\"}",
    "seckill_cache_bypassed_total{cache=\"shop\"}",
    "seckill_cache_not_stored_total{cache=\"shop\"}",
];
/// Allowance for statements of other clients during a measurement.
const OTHERS: f64 = 20.0;
/// Allowance for the statements that an instance executes each second by itself (some 4).
const BACKGROUND_PER_S: f64 = 10.0;

/// What [`Counts::with_redis_in_time`] shows.
pub const BYPASSED: &str = "reads that Redis did not answer in time";

/// A case, with its options.
pub trait Case: Args {
    /// How many temporary shops it needs.
    const SHOPS: u64;

    /// Has shops read, and judges what came of it.
    async fn run(&self, stage: &Stage) -> Result<Checked, Error>;
}

/// What a case works with.
pub struct Stage {
    pub access: Access,
    /// The instances themselves.
    pub nodes: Vec<Target>,
    pub progress: Progress,
    pub table: ShopTable,
    /// The cache's keys.
    pub keys: RedisKeys,
    /// The temporary shops.
    pub shops: Vec<u64>,
    /// Cancelled when nothing more shall be read; what was seen is reported.
    pub stop: CancellationToken,
}

impl Stage {
    /// Opens so many connections to each instance.
    pub async fn connect(&self, each: u32) -> Result<Connections, Error> {
        let count = self.nodes.len() * each as usize;
        let mut connections = Connections::new(&self.nodes, count, LIMIT)?;
        connections.open().await?;
        Ok(connections)
    }

    /// The instances' addresses.
    pub fn urls(&self) -> String {
        self.nodes
            .iter()
            .map(Target::to_string)
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// Does `work`; returns its value, and what the instances and the database counted meanwhile.
    pub async fn counting<T>(
        &self,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<(T, Counts), Error> {
        let begin = Instant::now();
        let before = self.counters().await?;
        let done = work.await?;
        let time = begin.elapsed();
        let after = self.counters().await?;
        let counts = Counts::from_counters(before, after, self.nodes.len(), time);
        Ok((done, counts))
    }

    /// Reads these shops at the same instant, one from each instance; returns what was counted meanwhile.
    pub async fn read_each(&self, strategy: ReadStrategy, ids: Vec<u64>) -> Result<Counts, Error> {
        let mut readers = self.connect(1).await?;
        let due_now = Some(Instant::now());
        let reading = read_all(
            &mut readers,
            strategy,
            ids,
            due_now,
            Progress::Silent,
            &self.stop,
        );
        self.counting(reading).await.map(|(_, counts)| counts)
    }

    /// What all instances have counted so far in each of [`SERIES`], and how many statements the database has executed.
    async fn counters(&self) -> Result<[u64; 5], Error> {
        let mut counters = [0, 0, 0, 0, self.table.statements().await?];
        for node in &self.nodes {
            let failed = |reason: String| Error::Unreachable {
                url: node.to_string(),
                what: "GET /metrics",
                reason,
            };
            let response = Connection::new(node.clone(), LIMIT)
                .send(&Call::get("/metrics"))
                .await;
            let response = response.map_err(|error| failed(error.to_string()))?;
            let page = String::from_utf8_lossy(&response.body);
            for (sum, series) in counters.iter_mut().zip(SERIES) {
                let value = |line: &str| line.strip_prefix(series)?.trim().parse::<u64>().ok();
                *sum += page.lines().find_map(value).ok_or_else(|| {
                    let status = response.status;
                    failed(format!(
                        "HTTP {status} without {series}: a proxy, or a Java node?"
                    ))
                })?;
            }
        }
        Ok(counters)
    }
}

/// Does `work`, and meanwhile `disturb` over and over, with this pause before each time.
pub async fn disturbed<T>(
    work: impl Future<Output = Result<T, Error>>,
    pause: Duration,
    disturb: impl AsyncFnMut() -> Result<(), Error>,
) -> Result<T, Error> {
    tokio::select! {
        done = work => done,
        error = repeat_until_error(pause, disturb) => Err(error),
    }
}

async fn repeat_until_error(
    pause: Duration,
    mut disturb: impl AsyncFnMut() -> Result<(), Error>,
) -> Error {
    loop {
        sleep(pause).await;
        if let Err(error) = disturb().await {
            return error;
        }
    }
}

/// What was counted during some work.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Reads that the Bloom filter answered.
    pub filtered: u64,
    /// Reads of the database.
    pub loads: u64,
    /// Reads for which Redis did not answer in time, or did not store the value.
    pub bypassed: u64,
    /// Prepared statements of all clients that the database has executed, beyond the loads and what is allowed for others.
    pub unexplained: u64,
    /// How long the work took.
    pub time: Duration,
}

impl Counts {
    /// The difference of the counters before and after; 0 where it is negative, because an instance was started anew.
    fn from_counters(before: [u64; 5], after: [u64; 5], instances: usize, time: Duration) -> Self {
        let [filtered, loads, unasked, not_stored, statements] =
            [0, 1, 2, 3, 4].map(|index| after[index].saturating_sub(before[index]));
        let other_statements = OTHERS + BACKGROUND_PER_S * instances as f64 * time.as_secs_f64();
        let unexplained = statements.saturating_sub(loads + other_statements as u64);
        Self {
            filtered,
            loads,
            bypassed: unasked + not_stored,
            unexplained,
            time,
        }
    }

    /// The checks of the strategies' promises. If Redis did not answer in time, what does not hold is unclear and no
    /// violation: such a read loads without Redis, on purpose. It happens on a busy machine, or if an instance is not
    /// optimised.
    pub fn with_redis_in_time(self, what: &str, checks: Vec<Check>) -> Vec<Check> {
        if self.bypassed == 0 {
            return checks;
        }
        let mut checks: Vec<Check> = checks.into_iter().map(Check::needed).collect();
        checks.push(Check::shown(what, self.bypassed));
        checks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_without_a_load_are_unexplained_except_the_instances_own() {
        let unexplained = |statements: u64, seconds: u64| {
            let before = [7, 3, 1, 1, 9];
            let after = [7, 4, 2, 3, 9 + statements];
            let counts = Counts::from_counters(before, after, 2, Duration::from_secs(seconds));
            assert_eq!((counts.filtered, counts.loads, counts.bypassed), (0, 1, 3));
            counts.unexplained
        };
        // Two instances execute some 8 a second by themselves.
        assert_eq!(unexplained(33 * 8, 33), 0);
        assert_eq!(unexplained(33 * 8, 1), 223);
        assert_eq!(unexplained(1000, 33), 319);
    }
}
