//! Sizes of one thing beside each other: what an order by `group-commit` costs, and a refusal of sales without stock.

use std::time::Duration;

use crate::plan::figures::{Answer, Cost, Level};

use crate::bench::environment::Environment;
use crate::bench::options::say;
use crate::bench::plan::{Plan, Stock};
use crate::bench::run::*;
use crate::bench::servers::Server;
use crate::spread::{Spread, beside, median};

/// Clients of the closed loop, spread over the instances.
pub const CLIENTS: usize = 512;

/// The smaller number of sessions; where sessions grow, so many attempts are made in a run, each by another buyer.
pub const FEW_SESSIONS: usize = 10_000;

/// A plan that asks `servers` for answers of so many sales that are open at once.
pub fn asking<'a>(environment: &'a Environment, servers: &'a [Server], sales: u64) -> Plan<'a> {
    let one = Plan::new("group-commit", environment, &servers[0]);
    Plan { servers: servers.iter().collect(), sales: Some(sales), clients: CLIENTS, ..one }
}

/// A run of `plan` on new sales. Where it has a part of the buyers, those are others each time.
pub async fn answers(plan: &Plan<'_>, round: usize, is_order: bool) -> anyhow::Result<Run> {
    let part = plan.part.map(|(count, _)| (count, 2 * round + usize::from(is_order)));
    if part.is_some() {
        // Sessions that the instance remembers are not asked for.
        tokio::time::sleep(Duration::from_millis(900)).await;
    }
    let plan = Plan {
        name: if is_order { "order" } else { "sold out" },
        stock: if is_order { Stock::PerBuyer } else { Stock::SoldOut },
        part,
        ..plan.clone()
    };
    Ok(plan.run().await?.0)
}

/// Measures `sizes` in interleaved rounds: how many there are of `what` grows, and what is asked then.
pub async fn grow(what: &str, sizes: &[(u64, Plan<'_>)]) -> anyhow::Result<Vec<Level>> {
    say(what);
    let one = async |round, (_, plan): &(u64, Plan<'_>)| {
        anyhow::Ok((answers(plan, round, true).await?, answers(plan, round, false).await?))
    };
    let runs = sizes[0].1.environment.args.interleaved(sizes, one).await?;
    let runs: Vec<(Vec<Run>, Vec<Run>)> =
        runs.into_iter().map(|runs| runs.into_iter().unzip()).collect();
    let level = |((count, _), (orders, refusals)): (&(u64, _), &(Vec<Run>, Vec<Run>))| Level {
        dimension: what.to_owned(),
        count: *count,
        order: answer(orders, &runs[0].0, ORDERS_PER_S),
        refusal: answer(refusals, &runs[0].1, ANSWERS_PER_S),
    };
    Ok(sizes.iter().zip(&runs).map(level).collect())
}

/// The medians of `runs`, each beside the run of `smallest` of the same round.
pub fn answer(runs: &[Run], smallest: &[Run], rate: Figure) -> Answer {
    let of = |Figure(_, value): Figure| median(runs.iter().map(value));
    let none = Spread { median: f64::NAN, least: f64::NAN, most: f64::NAN };
    let growth = |Figure(_, value): Figure| beside(runs, smallest, value).unwrap_or(none);
    let Spread { median, least, most } = growth(SERVERS_US);
    Answer {
        cost: Cost {
            service_us: of(SERVICE_US),
            database_us: of(DATABASE_US),
            redis_us: of(REDIS_US),
            client_us: of(CLIENT_US),
        },
        p99_ms: of(P99),
        per_s: of(rate),
        growth: [median, least, most],
        p99_growth: growth(P99).median,
        batch: Spread::of(runs.iter().filter_map(|run| run.batch)).map(|batch| batch.median),
    }
}
