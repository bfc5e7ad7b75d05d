//! The figures of one run.

use std::collections::BTreeMap;
use std::fmt;

use crate::plan::figures::Cost;
use serde::Serialize;
use workload::latency::Latency;
use workload::markdown::figure;

/// The figures of a run that passed the audit, or of a measurement without HTTP, which has only some of them.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Run {
    pub name: &'static str,
    pub clients: usize,
    /// Orders per second, answered while attempts were being made.
    pub orders_per_s: f64,
    /// Answers of any kind, likewise.
    pub answers_per_s: f64,
    /// Latency of orders; of all answers where nothing is on sale.
    pub latency: Latency,
    /// Attempts by outcome.
    pub outcomes: BTreeMap<String, u64>,
    /// Processor time of one answer; depends far less on the machine's other load than any rate. The service is all the
    /// processes asked (behind nginx: the instances too), NaN where they are not known; the client is this program.
    pub cpu: Cost,
    /// Orders in a commit of `group-commit`, on average over the instances asked.
    pub batch: Option<f64>,
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, clients, answers_per_s, latency, cpu, .. } = self;
        write!(f, "{name}: {clients} clients")?;
        // A measurement without HTTP has only some of them.
        for (value, unit) in
            [(*answers_per_s, "answers/s"), (latency.p99_ms, "ms at p99"), (cpu.servers_us(), "µs")]
        {
            if value > 0.0 {
                write!(f, ", {} {unit}", figure(value))?;
            }
        }
        self.outcomes.iter().try_for_each(|(name, count)| write!(f, ", {name} {count}"))
    }
}
