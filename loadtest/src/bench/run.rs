//! The figures of one run.

use std::collections::BTreeMap;
use std::fmt;

use workload::latency::Latency;
use workload::markdown::figure;

use crate::plan::figures::Cost;
use crate::spread::median;

/// The figures of a run that passed the audit, or of a measurement without HTTP, which has only some of them.
#[derive(Debug, Clone, Default)]
pub struct Run {
    pub name: &'static str,
    pub clients: usize,
    /// Orders per second, answered while attempts were being made.
    pub orders_per_s: f64,
    /// Answers of any kind, likewise.
    pub answers_per_s: f64,
    /// Latency of orders; of all answers where nothing is on sale.
    pub latency: Latency,
    /// Time from the beginning of the run to each order, and to each answer.
    pub ends: [Latency; 2],
    /// Attempts by outcome.
    pub outcomes: BTreeMap<String, usize>,
    /// Processor time of one answer; depends far less on the machine's other load than any rate. The service is all the
    /// processes asked (behind nginx: the instances too); the client is this program.
    pub cpu: Cost,
    /// Orders in a commit of `group-commit`, on average over the instances asked.
    pub batch: Option<f64>,
}

/// A figure of a run, with its name.
#[derive(Debug, Clone, Copy)]
pub struct Figure(pub &'static str, pub fn(&Run) -> f64);

impl Figure {
    /// Its median.
    pub fn median<'a>(self, runs: impl IntoIterator<Item = &'a Run>) -> f64 {
        median(runs.into_iter().map(self.1))
    }
}

pub const ORDERS_PER_S: Figure = Figure("orders/s", |run| run.orders_per_s);
pub const ANSWERS_PER_S: Figure = Figure("answers/s", |run| run.answers_per_s);
pub const P50: Figure = Figure("p50 ms", |run| run.latency.p50_ms);
pub const P99: Figure = Figure("p99 ms", |run| run.latency.p99_ms);
pub const P999: Figure = Figure("p99.9 ms", |run| run.latency.p999_ms);
pub const LONGEST: Figure = Figure("max ms", |run| run.latency.max_ms);
/// Little's law: clients = rate × time in the system.
pub const LITTLE: Figure = Figure("ms by Little's law", |run| {
    run.clients as f64 / run.orders_per_s * 1e3
});
pub const SERVICE_US: Figure = Figure("service µs", |run| run.cpu.service_us);
pub const DATABASE_US: Figure = Figure("database µs", |run| run.cpu.database_us);
pub const REDIS_US: Figure = Figure("Redis µs", |run| run.cpu.redis_us);
pub const CLIENT_US: Figure = Figure("client µs", |run| run.cpu.client_us);
pub const SERVERS_US: Figure = Figure("all servers' µs", |run| run.cpu.servers_us());

/// The medians of what `runs` cost.
pub fn median_cost(runs: &[Run]) -> Cost {
    Cost {
        service_us: SERVICE_US.median(runs),
        database_us: DATABASE_US.median(runs),
        redis_us: REDIS_US.median(runs),
        client_us: CLIENT_US.median(runs),
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            clients,
            answers_per_s,
            latency,
            cpu,
            ..
        } = self;
        write!(f, "{name}: {clients} clients")?;
        // A measurement without HTTP has only some of these figures.
        for (value, unit) in [
            (*answers_per_s, "answers/s"),
            (latency.p99_ms, "ms at p99"),
            (cpu.servers_us(), "µs"),
        ] {
            if value > 0.0 {
                write!(f, ", {} {unit}", figure(value))?;
            }
        }
        self.outcomes
            .iter()
            .try_for_each(|(name, count)| write!(f, ", {name} {count}"))
    }
}
