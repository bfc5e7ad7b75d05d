//! What a case is, and what it works with: the instances, the servers behind them, and what reads of shops cost there, by two independent
//! counts: the instances' own metrics (`GET /metrics`, Prometheus text format 0.0.4), and the statements that the database
//! says it has executed.

use std::time::{Duration, Instant};

use clap::Args;
use tokio::time::sleep;
use workload::{
    Access, Error, Target,
    driver::Connections,
    http::{Call, Connection},
    live::Progress,
};

use super::{
    keys::RedisKeys,
    reads::{LIMIT, Read, ReadStrategy, read_all},
    shops::ShopTable,
};
use crate::report::Checked;

/// Connections of the readers to each instance, in most cases.
pub const CONNECTIONS: u32 = 64;
/// Statements of other clients during any measurement, and those that an instance executes each second by itself (some 4).
const OTHERS: f64 = 20.0;
const BACKGROUND_PER_S: f64 = 10.0;

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
}

impl Stage {
    /// So many open connections to each instance.
    pub async fn connect(&self, each: u32) -> Result<Connections, Error> {
        let count = self.nodes.len() * each as usize;
        let mut connections = Connections::new(&self.nodes, count, LIMIT)?;
        connections.open().await?;
        Ok(connections)
    }

    /// The instances' addresses.
    pub fn urls(&self) -> String {
        self.nodes.iter().map(Target::to_string).collect::<Vec<_>>().join(", ")
    }

    /// Does `work`; also what instances and database counted meanwhile.
    pub async fn counting<T>(
        &self,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<(T, Counts), Error> {
        let (begin, before) = (Instant::now(), self.counts().await?);
        let done = work.await?;
        Ok((done, self.counts().await?.since(before, begin.elapsed())))
    }

    /// Reads these shops at the same instant, one from each instance; also what was counted meanwhile.
    pub async fn read_each(
        &self,
        strategy: ReadStrategy,
        ids: Vec<u64>,
    ) -> Result<(Vec<Read>, Counts), Error> {
        let mut readers = self.connect(1).await?;
        let due = Some(Instant::now());
        self.counting(read_all(&mut readers, strategy, ids, due, Progress::Silent)).await
    }

    /// What instances and database have counted so far.
    pub async fn counts(&self) -> Result<Counts, Error> {
        let statements = self.table.statements().await?;
        let mut counts = Counts { statements, ..Counts::default() };
        for node in &self.nodes {
            counts.add(node).await?;
        }
        Ok(counts)
    }
}

/// Does `work`, and meanwhile `disturb` over and over, with this pause before each time.
pub async fn disturbed<T>(
    work: impl Future<Output = Result<T, Error>>,
    pause: Duration,
    mut disturb: impl AsyncFnMut() -> Result<(), Error>,
) -> Result<T, Error> {
    let disturbing = async {
        loop {
            sleep(pause).await;
            if let Err(error) = disturb().await {
                return error;
            }
        }
    };
    tokio::select! {
        done = work => done,
        error = disturbing => Err(error),
    }
}

/// Counts since the start of the servers, or during some work.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Reads that the Bloom filter answered.
    pub filtered: u64,
    /// Reads of the database.
    pub loads: u64,
    /// Loads under way.
    pub running: u64,
    /// Reads for which Redis did not answer in time.
    pub bypassed: u64,
    /// Prepared statements that the database has executed, of whatever client.
    pub statements: u64,
    /// The instances that were asked.
    pub instances: u32,
    /// How long the work took.
    pub time: Duration,
}

impl Counts {
    /// Adds what an instance says.
    async fn add(&mut self, node: &Target) -> Result<(), Error> {
        let failed = |reason: String| Error::Unreachable {
            url: node.to_string(),
            what: "GET /metrics",
            reason,
        };
        let response = Connection::new(node.clone(), LIMIT).send(&Call::get("/metrics")).await;
        let response = response.map_err(|error| failed(error.to_string()))?;
        let page = String::from_utf8_lossy(&response.body);
        self.instances += 1;
        for (sum, series) in [
            (&mut self.filtered, "seckill_cache_hits_total{cache=\"shop\",layer=\"filter\"}"),
            (&mut self.loads, "seckill_cache_loads_total{cache=\"shop\"}"),
            (&mut self.running, "seckill_cache_loads_running"),
            (&mut self.bypassed, "seckill_cache_bypassed_total{cache=\"shop\"}"),
        ] {
            let value = |line: &str| line.strip_prefix(series)?.trim_start().parse::<u64>().ok();
            let count = page.lines().find_map(value);
            *sum += count.ok_or_else(|| {
                let status = response.status;
                failed(format!("HTTP {status} without {series}; is it a proxy, or a Java node?"))
            })?;
        }
        Ok(())
    }

    /// What happened since `before`, in this time; nothing where an instance was started anew.
    fn since(self, before: Self, time: Duration) -> Self {
        Self {
            filtered: self.filtered.saturating_sub(before.filtered),
            loads: self.loads.saturating_sub(before.loads),
            bypassed: self.bypassed.saturating_sub(before.bypassed),
            statements: self.statements.saturating_sub(before.statements),
            time,
            ..self
        }
    }

    /// Statements that may have been executed meanwhile besides loads.
    pub fn others(&self) -> u64 {
        let background = BACKGROUND_PER_S * f64::from(self.instances) * self.time.as_secs_f64();
        (OTHERS + background) as u64
    }
}
