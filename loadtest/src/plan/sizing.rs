//! What a sale needs so that nearly all answers come in time.

use serde::Serialize;

use crate::plan::{
    figures::Memory,
    fluid::needed_rate,
    model::{Demand, Machines, Model, PLANNED_LOAD},
};

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

impl Needs {
    /// Sizes `machines` for a 99th percentile of `target_s`; `None` where no size reaches it, as the orders of one sale
    /// have a limit of their own.
    pub fn of(
        model: &Model,
        demand: &Demand,
        machines: &Machines,
        memory: &Memory,
        buyers: f64,
        target_s: f64,
    ) -> Option<Self> {
        let orders = one_sale_per_s(model);
        let answers_per_s = needed_rate(demand, orders, target_s)?;
        let needed = |name: &str| {
            let each = model.stations.iter().zip(model.order_load()).zip(model.refusal_load());
            let found = each.filter(|((station, _), _)| station.name == name).map(
                |((_, order), refusal)| {
                    (answers_per_s.min(orders) * order).max(answers_per_s * refusal) / PLANNED_LOAD
                },
            );
            found.sum::<f64>()
        };
        let service_cores = needed("service");
        let connections = answers_per_s * target_s;
        Some(Self {
            answers_per_s,
            nodes: (service_cores / machines.node_cores).ceil(),
            service_cores,
            redis_shards: (needed("Redis") + needed("the sale's Redis shard")).ceil(),
            database_cores: needed("database"),
            session_bytes: buyers * memory.session_redis,
            connections,
            connection_bytes: connections * memory.connection_instance,
        })
    }
}

/// Orders a second of one sale, whatever the machines: its row, and its keys' Redis.
fn one_sale_per_s(model: &Model) -> f64 {
    let row = model.commit.as_ref().map_or(f64::INFINITY, |commit| commit.batch / commit.row_s);
    let shard = model.stations.iter().zip(model.order_load());
    let shard =
        shard.filter(|(station, load)| station.name == "the sale's Redis shard" && *load > 0.0);
    shard.map(|(_, load)| 1.0 / load).fold(row, f64::min)
}
