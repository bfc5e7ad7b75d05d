//! What a scenario works with: the instances and the servers behind them. What reads of shops cost there is known by two
//! independent counts: the instances' own metrics (`GET /metrics`, Prometheus text format 0.0.4), and the statements that
//! the database says it has executed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio_util::sync::CancellationToken;
use workload::{
    Access, Environment, Error, Target,
    driver::Connections,
    http::{Call, Connection},
    live::{Live, Progress},
};

use super::{
    keys::RedisKeys,
    reads::{self, LIMIT, Read, Strategy},
    shops::ShopTable,
};
use crate::report::{Check, Checked};

/// What [`Counts::unexplained`] is called in a report.
pub const UNEXPLAINED: &str = "statements of the database without a load";
/// Temporary shops of a run.
pub const SHOPS: u64 = 1000;
/// Connections of the readers to each instance, in most scenarios.
pub const CONNECTIONS: u32 = 64;
/// Counters in the metrics of an instance: loads, reads for which Redis could not be asked, and reads whose value Redis did
/// not store.
const SERIES: [&str; 3] = [
    "seckill_cache_loads_total{cache=\"shop\"}",
    "seckill_cache_bypassed_total{cache=\"shop\"}",
    "seckill_cache_not_stored_total{cache=\"shop\"}",
];
/// Allowance for statements of other clients during a measurement.
const OTHERS: f64 = 20.0;
/// Allowance for the statements that an instance executes each second by itself (some 4).
const BACKGROUND_PER_S: f64 = 10.0;

/// What a scenario works with.
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
    /// Reads for which Redis did not answer in time, or did not store the value.
    bypassed: AtomicU64,
}

/// What was counted during some work.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Reads of the database.
    pub loads: u64,
    /// Prepared statements of all clients that the database has executed, beyond the loads and what is allowed for others.
    pub unexplained: u64,
    /// Reads for which Redis did not answer in time, or did not store the value.
    pub bypassed: u64,
}

impl Stage {
    pub async fn open(environment: Environment, stop: &CancellationToken) -> Result<Self, Error> {
        Ok(Self {
            table: ShopTable::open(&environment.access.database_url).await?,
            keys: RedisKeys::open(&environment.access.redis_url).await?,
            access: environment.access,
            nodes: environment.nodes,
            progress: environment.progress,
            shops: Vec::new(),
            stop: stop.clone(),
            bypassed: AtomicU64::default(),
        })
    }

    /// Makes the temporary shops. The Bloom filters do not know the new rows; the service fills a new one, which does.
    pub async fn make_shops(&mut self) -> Result<(), Error> {
        self.shops = self.table.make_temporary(SHOPS).await?;
        self.keys.remove(&self.shops).await?;
        self.keys.drop_filters().await
    }

    /// Removes shops and keys: rows first, so that they are not cached again.
    pub async fn clean_up(&self) -> Result<(), Error> {
        // An interrupted run may have left it locked.
        self.table.unlock().await?;
        self.table.remove_temporary().await?;
        self.keys.remove(&self.shops).await?;
        self.keys.drop_filters().await
    }

    /// Opens so many connections to each instance.
    pub async fn connect(&self, each: u32) -> Result<Connections, Error> {
        let count = self.nodes.len() * each as usize;
        let mut connections = Connections::new(&self.nodes, count, LIMIT)?;
        connections.open().await?;
        Ok(connections)
    }

    /// The instances' addresses.
    pub fn urls(&self) -> String {
        let urls: Vec<_> = self.nodes.iter().map(Target::to_string).collect();
        urls.join(", ")
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
        self.bypassed.fetch_add(counts.bypassed, Ordering::Relaxed);
        Ok((done, counts))
    }

    /// Reads all of `ids` in their order, each once: all at the instant `due`, or, without one, each as soon as a connection
    /// is free. After `stop` it returns the reads that were made.
    pub async fn read(
        &self,
        readers: &mut Connections,
        strategy: Strategy,
        ids: Vec<u64>,
        due: Option<Instant>,
    ) -> Result<Vec<Read>, Error> {
        // What is read at one instant is over before there is progress.
        let progress = match due {
            Some(_) => Progress::Silent,
            None => self.progress,
        };
        let total = ids.len() as u64;
        let live = Arc::new(Live::stopped_by(&self.stop));
        let ids = ids.into_iter().map(move |id| (id, due));
        let reading = reads::read(readers, strategy, &live, ids);
        progress.watch("reads", total, &live, reading).await
    }

    /// Reads these shops as fast as it goes; returns the reads, and what was counted meanwhile.
    pub async fn read_once(
        &self,
        strategy: Strategy,
        ids: Vec<u64>,
    ) -> Result<(Vec<Read>, Counts), Error> {
        let mut readers = self.connect(CONNECTIONS).await?;
        let reading = self.read(&mut readers, strategy, ids, None);
        self.counting(reading).await
    }

    /// What all instances have counted so far in each of [`SERIES`], and how many statements the database has executed.
    pub async fn counters(&self) -> Result<[u64; 4], Error> {
        let mut counters = [0, 0, 0, self.table.statements().await?];
        for node in &self.nodes {
            let failed = |reason: String| Error::Unreachable {
                url: node.to_string(),
                what: "GET /metrics",
                reason,
            };
            let mut connection = Connection::new(node.clone(), LIMIT);
            let response = connection.send(&Call::get("/metrics")).await;
            let response = response.map_err(|error| failed(error.to_string()))?;
            let page = String::from_utf8_lossy(&response.body);
            for (sum, series) in counters.iter_mut().zip(SERIES) {
                let value = |line: &str| line.strip_prefix(series)?.trim().parse::<u64>().ok();
                let Some(count) = page.lines().find_map(value) else {
                    let status = response.status;
                    let reason =
                        format!("HTTP {status} without {series}: a proxy, or a Java node?");
                    return Err(failed(reason));
                };
                *sum += count;
            }
        }
        Ok(counters)
    }

    /// A report, if Redis answered in time all the while. Else what does not hold is unclear and no violation: a read that
    /// Redis does not answer loads without it, on purpose. It happens on a busy machine, or if an instance is not optimised.
    pub fn with_redis_in_time(&self, mut report: Checked) -> Checked {
        let bypassed = self.bypassed.load(Ordering::Relaxed);
        if bypassed > 0 {
            report = report.unclear_at_worst();
            let what = "reads that Redis did not answer in time";
            report.checks.push(Check::shown(what, bypassed));
        }
        report
    }
}

impl Counts {
    /// The difference of the counters before and after; 0 where it is negative, because an instance was started anew.
    fn from_counters(before: [u64; 4], after: [u64; 4], instances: usize, time: Duration) -> Self {
        let [loads, unasked, not_stored, statements] =
            [0, 1, 2, 3].map(|index| after[index].saturating_sub(before[index]));
        let other_statements = OTHERS + BACKGROUND_PER_S * instances as f64 * time.as_secs_f64();
        Self {
            loads,
            bypassed: unasked + not_stored,
            unexplained: statements.saturating_sub(loads + other_statements as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_without_a_load_are_unexplained_except_the_instances_own() {
        let unexplained = |statements: u64, seconds: u64| {
            let before = [3, 1, 1, 9];
            let after = [4, 2, 3, 9 + statements];
            let counts = Counts::from_counters(before, after, 2, Duration::from_secs(seconds));
            assert_eq!([counts.loads, counts.bypassed], [1, 3]);
            counts.unexplained
        };
        // Two instances execute some 8 a second by themselves.
        assert_eq!(unexplained(33 * 8, 33), 0);
        assert_eq!(unexplained(33 * 8, 1), 223);
        assert_eq!(unexplained(1000, 33), 319);
    }
}
