//! What reads of shops cost, by two independent counts: the instances' own metrics (`GET /metrics`, Prometheus text format
//! 0.0.4), and the statements that the database says it has executed.

use std::time::Duration;

use workload::{
    Error, Target,
    http::{Call, Connection},
};

use super::reads::LIMIT;

/// Statements of other clients during any measurement, and those that an instance executes each second by itself (some 4).
const OTHERS: f64 = 20.0;
const BACKGROUND_PER_S: f64 = 10.0;

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
    pub async fn add(&mut self, node: &Target) -> Result<(), Error> {
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
    #[must_use]
    pub fn since(self, before: Self, time: Duration) -> Self {
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
