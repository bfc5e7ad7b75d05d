//! The capacity model's terms: stations with servers, what an order and a refusal cost at each, and the commits.

use serde::Serialize;

use crate::plan::{arrivals::Arrivals, figures::Figures};
use workload::Error;

/// Orders in one transaction of `group-commit`, and its transactions of a sale in an instance at once: the defaults of
/// Orders in a batch of group commit, and `--group-in-flight`.
const GROUP_BATCH: f64 = 512.0;
const GROUP_IN_FLIGHT: f64 = 2.0;

/// Purchases in flight in an instance: the default of `--max-purchases`.
const MAX_PURCHASES: f64 = 1024.0;

/// Share of a processor that a plan counts on: beyond it, waiting times grow quickly.
pub const PLANNED_LOAD: f64 = 0.7;

/// Where the parts run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Machines {
    /// Instances of the service.
    pub nodes: u32,
    /// Processors of each.
    pub node_cores: f64,
    /// Redis servers, over which sessions and locks are spread.
    pub redis_shards: u32,
    /// Processors of the database.
    pub database_cores: f64,
    /// A commit with its write to the disk, seconds.
    pub commit_s: f64,
    /// Everything, the load generator too, runs on so many processors instead, all of them in use.
    pub one_machine: Option<f64>,
}

/// A pool of processors.
#[derive(Debug, Clone, PartialEq)]
pub struct Station {
    /// Its name in reports.
    pub name: &'static str,
    /// Processors.
    pub servers: f64,
}

/// How orders reach the disk.
#[derive(Debug, Clone, PartialEq)]
pub struct Commit {
    /// The database's station.
    pub station: usize,
    /// Processor time of one order there, seconds.
    pub order_s: f64,
    /// How long the sale's row is locked for a transaction: one at a time. Seconds.
    pub row_s: f64,
    /// Orders in a transaction at most.
    pub batch: f64,
    /// Transactions at once at most.
    pub in_flight: f64,
}

/// Stations, and what an answer costs there.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// The stations.
    pub stations: Vec<Station>,
    /// Station and processor time in seconds, in this order; without the commit.
    pub order: Vec<(usize, f64)>,
    /// The same for a refusal.
    pub refusal: Vec<(usize, f64)>,
    /// `None`: nothing waits for it.
    pub commit: Option<Commit>,
    /// Attempts in hand at once; others wait before the instances.
    pub admitted: f64,
}

/// Attempts to buy.
#[derive(Debug, Clone, PartialEq)]
pub struct Demand {
    /// Attempts in all.
    pub attempts: f64,
    /// Vouchers on sale.
    pub stock: f64,
    /// When attempts come.
    pub arrivals: Arrivals,
    /// A second after the sale is sold out, attempts are answered before they reach the service.
    pub edge: bool,
    /// Attempts a second that a waiting room lets through.
    pub waiting_room: Option<f64>,
}

/// What limits a rate, and the rate.
pub type Limit = (f64, &'static str);

impl Model {
    /// Builds the model of `strategy` on `machines`. `session_share` is the share of attempts whose session Redis is asked
    /// for.
    ///
    /// # Errors
    /// There are no figures of this strategy.
    pub fn new(
        figures: &Figures,
        strategy: &str,
        machines: &Machines,
        session_share: f64,
    ) -> Result<Self, Error> {
        let (order, refusal) = (figures.answer(strategy)?, figures.answer("sold-out")?);
        let us = |us: f64| us / 1e6;
        // A refusal asks Redis for the session and nothing else, so that is also an order's part of it.
        let session = us(refusal.cost.redis_us) * session_share;
        let rest = us((order.cost.redis_us - refusal.cost.redis_us).max(0.0));
        let (stations, [service, redis, sale, database, client]);
        match machines.one_machine {
            Some(cores) => {
                stations = vec![Station { name: "the machine", servers: cores }];
                [service, redis, sale, database, client] = [0; 5];
            }
            None => {
                stations = vec![
                    Station {
                        name: "service",
                        servers: f64::from(machines.nodes) * machines.node_cores,
                    },
                    Station { name: "Redis", servers: machines.redis_shards.into() },
                    // One sale's keys are on one shard, which does one thing at a time.
                    Station { name: "the sale's Redis shard", servers: 1.0 },
                    Station { name: "database", servers: machines.database_cores },
                ];
                [service, redis, sale, database, client] = [0, 1, 2, 3, 0];
            }
        }
        let is_one = machines.one_machine.is_some();
        let generator = |us: f64| if is_one { us / 1e6 } else { 0.0 };
        let sale = if strategy == "stream" { sale } else { redis };
        let mut at_order = vec![
            (client, generator(order.cost.client_us)),
            (service, us(order.cost.service_us)),
            (redis, session),
            (sale, rest),
        ];
        let at_refusal = vec![
            (client, generator(refusal.cost.client_us)),
            (service, us(refusal.cost.service_us)),
            (redis, session),
            (database, us(refusal.cost.database_us)),
        ];
        let order_s = us(order.cost.database_us);
        let admitted = f64::from(machines.nodes) * MAX_PURCHASES;
        let row_s = machines.commit_s;
        let commit = match strategy {
            "group-commit" => {
                let in_flight = f64::from(machines.nodes) * GROUP_IN_FLIGHT;
                Some(Commit { station: database, order_s, row_s, batch: GROUP_BATCH, in_flight })
            }
            // Admitted by Redis; the rows come later.
            "stream" => {
                at_order.push((database, order_s));
                None
            }
            _ => {
                let in_flight = admitted;
                Some(Commit { station: database, order_s, row_s, batch: 1.0, in_flight })
            }
        };
        let costs = |path: Vec<(usize, f64)>| path.into_iter().filter(|at| at.1 > 0.0).collect();
        Ok(Self { stations, order: costs(at_order), refusal: costs(at_refusal), commit, admitted })
    }

    /// Processor time of an order at each station, seconds.
    pub fn order_load(&self) -> Vec<f64> {
        let mut load = self.load(&self.order);
        if let Some(commit) = &self.commit {
            load[commit.station] += commit.order_s;
        }
        load
    }

    /// The same of a refusal.
    pub fn refusal_load(&self) -> Vec<f64> {
        self.load(&self.refusal)
    }

    fn load(&self, path: &[(usize, f64)]) -> Vec<f64> {
        let mut load = vec![0.0; self.stations.len()];
        path.iter().for_each(|(station, seconds)| load[*station] += seconds);
        load
    }

    /// Orders a second of one sale at most.
    pub fn orders_per_s(&self) -> Limit {
        let commits = self.commits_per_s();
        self.rate(&self.order_load()).into_iter().chain(commits).fold(NO_LIMIT, lower)
    }

    /// Refusals a second at most.
    pub fn refusals_per_s(&self) -> Limit {
        self.rate(&self.refusal_load()).into_iter().fold(NO_LIMIT, lower)
    }

    /// What the commits of one sale allow, orders a second.
    pub fn commits_per_s(&self) -> Vec<Limit> {
        let Some(commit) = &self.commit else { return Vec::new() };
        let row = commit.batch / commit.row_s.max(1e-9);
        let transaction = commit.row_s + commit.batch * commit.order_s;
        let in_flight = commit.in_flight * commit.batch / transaction.max(1e-9);
        vec![(row, "the lock of the sale's row"), (in_flight, "transactions in flight")]
    }

    fn rate(&self, load: &[f64]) -> Vec<Limit> {
        let each = self.stations.iter().zip(load).filter(|(_, load)| **load > 0.0);
        each.map(|(station, load)| (station.servers / load, station.name)).collect()
    }

    /// The time of an order on servers that have nothing else to do, seconds.
    pub fn order_s(&self) -> f64 {
        let commit = self.commit.as_ref().map_or(0.0, |commit| commit.order_s + commit.row_s);
        self.order.iter().map(|(_, seconds)| seconds).sum::<f64>() + commit
    }

    /// The same of a refusal.
    pub fn refusal_s(&self) -> f64 {
        self.refusal.iter().map(|(_, seconds)| seconds).sum()
    }
}

const NO_LIMIT: Limit = (f64::INFINITY, "nothing");

fn lower(a: Limit, b: Limit) -> Limit {
    if b.0 < a.0 { b } else { a }
}
