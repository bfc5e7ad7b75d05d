//! What one answer costs, as `./dev bench --scale --write` measured it and wrote it to `docs/scale.json`. The capacity model
//! calculates with these figures, and tables of docs/BENCHMARKS.md show them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use workload::Error;

/// All figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Machine, versions and settings, in a paragraph.
    pub conditions: String,
    /// Costs as something grows, each compared with those of the smallest size.
    pub growth: Vec<Level>,
    /// What an answer costs, by strategy, in one sale on one instance; `sold-out` is a refusal.
    pub costs: BTreeMap<String, Cost>,
    /// Time of a small transaction of one client, with its commit, milliseconds.
    pub commit_ms: f64,
    /// Memory of a session, a connection and an order.
    pub memory: Memory,
    /// A whole sale, with which the model is compared.
    pub sale: MeasuredSale,
}

/// One size of one thing that grows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Level {
    /// What grows, such as `instances`.
    pub dimension: String,
    /// How many there are.
    pub count: u64,
    /// An order by `group-commit`.
    pub order: Answer,
    /// "Sold out", to buyers who have not asked before.
    pub refusal: Answer,
}

/// The figures of one kind of answer: medians of the rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Processor time.
    pub cost: Cost,
    /// 99th percentile, milliseconds, closed loop.
    pub p99_ms: f64,
    /// Processor time of the servers as a multiple of the smallest level's in the same round: median, least, most.
    pub growth: [f64; 3],
    /// The 99th percentile as a multiple of the smallest level's in the same round: the median.
    pub p99_growth: f64,
    /// Orders in a commit, on average; `None` where nothing was committed in batches.
    pub batch: Option<f64>,
}

/// Processor time of one answer, µs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Of the instances.
    pub service_us: f64,
    /// Of the database.
    pub database_us: f64,
    /// Of Redis.
    pub redis_us: f64,
    /// Of the load generator.
    pub client_us: f64,
}

impl Cost {
    /// Of the servers, without the load generator.
    pub fn servers_us(&self) -> f64 {
        self.service_us + self.database_us + self.redis_us
    }
}

/// Memory in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// Of Redis, per session.
    pub session_redis: f64,
    /// Of an instance, per idle keep-alive connection; without the kernel's buffers.
    pub connection_instance: f64,
    /// Of the database, per order with its index entries.
    pub order_database: f64,
}

/// A sale on `group-commit` for which all buyers came at once, on the machine of the other figures. Medians.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasuredSale {
    /// Buyers, with one attempt each.
    pub buyers: u64,
    /// Vouchers on sale.
    pub stock: u64,
    /// How many processors the servers and the load generator used on average. The others waited, or did other work.
    pub cores: f64,
    /// From the first attempt to the last order, seconds.
    pub sold_out_s: f64,
    /// To the last answer, seconds.
    pub answered_s: f64,
    /// Until 99 % of the buyers had their answer, seconds.
    pub p99_s: f64,
}

impl Figures {
    /// The figures that this program was built with.
    pub fn built_in() -> Result<Self, Error> {
        let text = include_str!("../../../docs/scale.json");
        serde_json::from_str(text).map_err(|error| Error::Usage(error.to_string()))
    }

    /// What an answer called `name` costs.
    pub fn cost(&self, name: &str) -> Result<&Cost, Error> {
        self.costs.get(name).ok_or_else(|| {
            let names = self
                .costs
                .keys()
                .map(String::as_str)
                .collect::<Vec<_>>()
                .join(", ");
            Error::Usage(format!(
                "--strategy {name}: there are figures of {names} only"
            ))
        })
    }
}
