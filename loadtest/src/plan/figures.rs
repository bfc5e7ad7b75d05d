//! What one answer costs, as `./dev bench --scale --write` measured it and wrote it to `docs/scale.json`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use workload::Error;

/// All figures that the plan calculates with.
#[derive(Debug, Serialize, Deserialize)]
pub struct Figures {
    /// Machine, versions and settings, in a paragraph.
    pub conditions: String,
    /// What an answer costs, by strategy, in one sale on one instance that knows the buyer's session; `sold-out` is a refusal.
    pub costs: BTreeMap<String, Cost>,
    /// What an answer costs more if the instance has to look up the session.
    pub session: Cost,
    /// Time of a small transaction of one client, with its commit, milliseconds.
    pub commit_ms: f64,
    /// Memory of Redis for each session, bytes.
    pub session_bytes: f64,
    /// A whole sale, with which the model is compared.
    pub sale: MeasuredSale,
}

/// Processor time of one answer, µs.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
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

    /// By how much each is larger than in `other`, where it is.
    pub fn beyond(&self, other: &Self) -> Self {
        let more = |of: fn(&Self) -> f64| (of(self) - of(other)).max(0.0);
        Self {
            service_us: more(|cost| cost.service_us),
            database_us: more(|cost| cost.database_us),
            redis_us: more(|cost| cost.redis_us),
            client_us: more(|cost| cost.client_us),
        }
    }
}

/// A sale on `group-commit` for which all buyers came at once, on the machine of the other figures. Medians.
#[derive(Debug, Serialize, Deserialize)]
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
            let names: Vec<_> = self.costs.keys().map(String::as_str).collect();
            let names = names.join(", ");
            Error::Usage(format!(
                "--strategy {name}: there are figures of {names} only"
            ))
        })
    }
}
