//! One answer: an order by `group-commit`, or a refusal of sales without stock.

use std::time::Duration;

use crate::plan::figures::{Answer, Cost};

use crate::bench::environment::Environment;
use crate::bench::plan::{Plan, Stock};
use crate::bench::run::Run;
use crate::bench::servers::Server;
use crate::spread::{Spread, beside, median};

/// Clients of the closed loop, spread over the instances.
pub const CLIENTS: usize = 512;
/// The smaller number of sessions; where sessions grow, so many attempts are made in a run, each by another buyer.
pub const FEW_SESSIONS: usize = 10_000;

/// A plan that asks `servers` for answers of so many sales that are open at once.
pub fn asking<'a>(environment: &'a Environment, servers: Vec<&'a Server>, sales: u64) -> Plan<'a> {
    let one = Plan::new("group-commit", environment, servers[0]);
    Plan { servers, sales: Some(sales), clients: CLIENTS, ..one }
}

/// A run of `plan` on new sales; its figures, and how many answers there were. Where it has a part of the buyers, those are
/// others each time.
pub async fn answers(
    plan: &Plan<'_>,
    round: usize,
    is_order: bool,
) -> anyhow::Result<(Run, usize)> {
    let part = plan.part.map(|(count, _)| (count, 2 * round + usize::from(is_order)));
    if part.is_some() {
        // Sessions that the instance remembers are not asked for.
        tokio::time::sleep(Duration::from_millis(900)).await;
    }
    let plan = Plan {
        name: if is_order { "order" } else { "sold out" },
        stock: if is_order { Stock::PerBuyer } else { Stock::SoldOut },
        part,
        repeat: !is_order && part.is_none(),
        ..plan.clone()
    };
    let (run, attempts) = plan.run().await?;
    Ok((run, attempts.list.len()))
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
