//! One answer: an order by `group-commit`, or a refusal of sales without stock.

use std::time::Duration;

use seckill_loadtest::plan::figures::{Answer, Cost};

use crate::bench::environment::Environment;
use crate::bench::plan::{Plan, Stock};
use crate::bench::run::Run;
use crate::bench::servers::Server;
use crate::bench::spread::{Spread, beside, median};

/// Clients of the closed loop, spread over the instances.
pub const CLIENTS: usize = 512;
/// The smaller number of sessions; where sessions grow, so many attempts are made in a run, each by another buyer.
pub const FEW_SESSIONS: usize = 10_000;

/// Instances that are asked.
#[derive(Clone)]
pub struct Asked<'a> {
    pub environment: &'a Environment,
    pub servers: Vec<&'a Server>,
    /// Sales that are open at once.
    pub sales: u64,
    /// A part of the buyers alone.
    pub part: Option<usize>,
    pub duration: Duration,
}

impl Asked<'_> {
    /// A run on new sales; its figures, and how many answers there were.
    pub async fn answers(&self, round: usize, is_order: bool) -> anyhow::Result<(Run, usize)> {
        let part = self.part.map(|count| (count, 2 * round + usize::from(is_order)));
        if part.is_some() {
            // Sessions that the instance remembers are not asked for.
            tokio::time::sleep(Duration::from_millis(900)).await;
        }
        let base = Plan::new("group-commit", self.environment, self.servers[0], self.duration);
        let plan = Plan {
            name: if is_order { "order" } else { "sold out" },
            servers: self.servers.clone(),
            stock: if is_order { Stock::PerBuyer } else { Stock::SoldOut },
            sales: Some(self.sales),
            part,
            clients: CLIENTS,
            repeat: !is_order && part.is_none(),
            ..base
        };
        let (run, attempts) = plan.run().await?;
        Ok((run, attempts.list.len()))
    }
}

/// The medians of `runs`, each beside the run of `smallest` of the same round.
pub fn answer(runs: &[Run], smallest: &[Run], rate: fn(&Run) -> f64) -> Answer {
    let of = |value: fn(&Run) -> f64| median(runs.iter().map(value));
    let none = Spread { median: f64::NAN, least: f64::NAN, most: f64::NAN };
    let growth = beside(runs, smallest, |run| run.cpu.servers_us()).unwrap_or(none);
    let p99_growth = beside(runs, smallest, |run| run.latency.p99_ms).unwrap_or(none);
    Answer {
        cost: Cost {
            service_us: of(|run| run.cpu.service_us),
            database_us: of(|run| run.cpu.database_us),
            redis_us: of(|run| run.cpu.redis_us),
            client_us: of(|run| run.cpu.client_us),
        },
        p99_ms: of(|run| run.latency.p99_ms),
        per_s: of(rate),
        growth: [growth.median, growth.least, growth.most],
        p99_growth: p99_growth.median,
        batch: Spread::of(runs.iter().filter_map(|run| run.batch)).map(|batch| batch.median),
    }
}
