//! The capacity model: stations with processors, what an order and a refusal cost at each, the commits; and what a target
//! needs of them.

use serde::Serialize;

use crate::plan::{
    figures::{Figures, Memory},
    options::PlanOptions,
    sale::{self, Outcome, Rates, needed_rate},
};
use workload::Error;

/// Orders in one transaction of `group-commit`, and its transactions of an instance at once: the size of a batch, and the
/// default of `--group-in-flight`.
const GROUP_BATCH: f64 = 512.0;
const GROUP_IN_FLIGHT: f64 = 2.0;
/// Purchases in flight in an instance: the default of `--max-purchases`.
const MAX_PURCHASES: f64 = 1024.0;
/// Share of a processor that a plan counts on: beyond it, waiting times grow quickly.
const PLANNED_LOAD: f64 = 0.7;

const SERVICE: &str = "service";
const REDIS: &str = "Redis";
const SALE_SHARD: &str = "the sale's Redis shard";
const DATABASE: &str = "database";

/// A rate, and what limits it.
pub type Limit = (f64, &'static str);

/// A pool of processors, and the processor time of an answer there, seconds.
#[derive(Debug)]
struct Station {
    name: &'static str,
    processors: f64,
    order_s: f64,
    refusal_s: f64,
}

/// How orders reach the disk before they are answered.
#[derive(Debug)]
struct Commit {
    /// Processor time of one order, seconds.
    order_s: f64,
    /// How long the sale's row is locked for a transaction: one at a time. Seconds.
    row_s: f64,
    /// Orders in a transaction at most.
    batch: f64,
    /// Transactions at once at most.
    in_flight: f64,
}

/// A sale on its machines.
#[derive(Debug)]
pub struct Model<'a> {
    options: &'a PlanOptions,
    memory: Memory,
    stations: Vec<Station>,
    /// `None`: nothing waits for it.
    commit: Option<Commit>,
}

/// What a target needs, with processors that are busy for seventy percent of the time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Needs {
    /// Answers a second.
    pub answers_per_s: f64,
    /// Instances of the given size.
    pub nodes: f64,
    /// Processors of all instances.
    pub service_cores: f64,
    /// Redis servers.
    pub redis_shards: f64,
    /// Processors of the database.
    pub database_cores: f64,
    /// Sessions of all buyers in Redis, bytes.
    pub session_bytes: f64,
    /// Requests under way at once, each on a connection.
    pub connections: f64,
    /// What they take of the instances' memory, bytes.
    pub connection_bytes: f64,
}

impl<'a> Model<'a> {
    /// The model of a sale.
    ///
    /// # Errors
    /// There are no figures of its strategy.
    pub fn new(figures: &Figures, options: &'a PlanOptions) -> Result<Self, Error> {
        let strategy = options.strategy.as_str();
        let (order, refusal) = (figures.answer(strategy)?.cost, figures.answer("sold-out")?.cost);
        let s = |us: f64| us / 1e6;
        // A refusal asks Redis for the session and nothing else, so that is also an order's part of it.
        let asked = if options.session_memory { 1.0 / options.tries.max(1.0) } else { 1.0 };
        let session = s(refusal.redis_us) * asked;
        let rest = s((order.redis_us - refusal.redis_us).max(0.0));
        // On `stream` one sale's keys are on one shard, which does one thing at a time.
        let (spread, own) = if strategy == "stream" { (0.0, rest) } else { (rest, 0.0) };
        let nodes = f64::from(options.nodes);
        let station =
            |name, processors, order_s, refusal_s| Station { name, processors, order_s, refusal_s };
        let (service, database) = (nodes * options.node_cores, options.database_cores);
        let mut stations = vec![
            station(SERVICE, service, s(order.service_us), s(refusal.service_us)),
            station(REDIS, options.redis_shards.into(), session + spread, session),
            station(SALE_SHARD, 1.0, own, 0.0),
            station(DATABASE, database, s(order.database_us), s(refusal.database_us)),
        ];
        if let Some(cores) = options.one_machine {
            let sum = |of: fn(&Station) -> f64| stations.iter().map(of).sum::<f64>();
            let order_s = s(order.client_us) + sum(|station| station.order_s);
            let refusal_s = s(refusal.client_us) + sum(|station| station.refusal_s);
            stations = vec![station("the machine", cores, order_s, refusal_s)];
        }
        let row_s = options.commit_ms.unwrap_or(figures.commit_ms) / 1e3;
        let commit = |batch, each| {
            Some(Commit { order_s: s(order.database_us), row_s, batch, in_flight: nodes * each })
        };
        let commit = match strategy {
            "group-commit" => commit(GROUP_BATCH, GROUP_IN_FLIGHT),
            // Admitted by Redis; the rows come later.
            "stream" => None,
            _ => commit(1.0, MAX_PURCHASES),
        };
        Ok(Self { options, memory: figures.memory, stations, commit })
    }

    fn limits(&self, cost: fn(&Station) -> f64) -> Vec<Limit> {
        let used = self.stations.iter().filter(|station| cost(station) > 0.0);
        used.map(|station| (station.processors / cost(station), station.name)).collect()
    }

    /// Orders a second of one sale at most.
    pub fn orders_per_s(&self) -> Limit {
        let mut limits = self.limits(|station| station.order_s);
        if let Some(Commit { order_s, row_s, batch, in_flight }) = self.commit {
            limits.push((batch / row_s.max(1e-9), "the lock of the sale's row"));
            let transaction = (row_s + batch * order_s).max(1e-9);
            limits.push((in_flight * batch / transaction, "transactions in flight"));
        }
        lowest(limits)
    }

    /// Refusals a second at most.
    pub fn refusals_per_s(&self) -> Limit {
        lowest(self.limits(|station| station.refusal_s))
    }

    /// How the sale goes, by the formulas.
    pub fn formula(&self) -> Outcome {
        let row_s = self.commit.as_ref().map_or(0.0, |commit| commit.row_s);
        let order_s = self.stations.iter().map(|station| station.order_s).sum::<f64>() + row_s;
        let refusal_s = self.stations.iter().map(|station| station.refusal_s).sum();
        let (orders, refusals) = (self.orders_per_s().0, self.refusals_per_s().0);
        sale::sale(self.options, &Rates { orders, refusals, alone_s: [order_s, refusal_s] })
    }

    /// What is needed so that 99 % of the answers come within the target; `None` where no size reaches it, as the orders of
    /// one sale have a limit of their own, and on one machine.
    pub fn needs(&self) -> Option<Needs> {
        let options = self.options;
        if options.one_machine.is_some() {
            return None;
        }
        // Of one sale, whatever the machines: its row, and its keys' Redis.
        let row = self.commit.as_ref().map(|commit| (commit.batch / commit.row_s, ""));
        let shard = self.limits(|station| station.order_s);
        let shard = shard.into_iter().filter(|(_, name)| *name == SALE_SHARD);
        let (orders, _) = lowest(shard.chain(row));
        let answers_per_s = needed_rate(options, orders)?;
        let needed = |name: &str| {
            let found = self.stations.iter().filter(|station| station.name == name);
            let busy = found.map(|station| {
                (answers_per_s.min(orders) * station.order_s).max(answers_per_s * station.refusal_s)
            });
            busy.sum::<f64>() / PLANNED_LOAD
        };
        let connections = answers_per_s * options.target;
        Some(Needs {
            answers_per_s,
            nodes: (needed(SERVICE) / options.node_cores).ceil(),
            service_cores: needed(SERVICE),
            redis_shards: (needed(REDIS) + needed(SALE_SHARD)).ceil(),
            database_cores: needed(DATABASE),
            session_bytes: options.buyers as f64 * self.memory.session_redis,
            connections,
            connection_bytes: connections * self.memory.connection_instance,
        })
    }

    /// What is too small for the target, the worst first: name, and how many times as much is needed.
    pub fn short_of(&self) -> Vec<(&'static str, f64)> {
        let Some(needs) = self.needs() else { return Vec::new() };
        let options = self.options;
        let mut times = vec![
            ("instances", needs.nodes / f64::from(options.nodes)),
            ("Redis", needs.redis_shards / f64::from(options.redis_shards)),
            ("database", needs.database_cores / options.database_cores),
        ];
        times.retain(|(_, times)| *times > 1.0);
        times.sort_by(|a, b| b.1.total_cmp(&a.1));
        times
    }
}

fn lowest(limits: impl IntoIterator<Item = Limit>) -> Limit {
    limits.into_iter().fold((f64::INFINITY, "nothing"), |a, b| if b.0 < a.0 { b } else { a })
}
