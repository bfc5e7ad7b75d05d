//! What the capacity plan is fed with: the answers of each strategy on one instance, and a whole sale with which the plan
//! is compared, in the same rounds.

use std::time::Duration;

use crate::plan::figures::{MeasuredSale, NamedAnswer};
use anyhow::ensure;

use super::answers::{CLIENTS, answer};
use crate::bench::environment::Environment;
use crate::bench::generator::{Attempts, Outcome};
use crate::bench::plan::{Plan, Stock};
use crate::bench::rounds::interleaved;
use crate::bench::run::Run;
use crate::bench::servers;
use crate::spread::median;

/// Of the buyers of the whole sale so many in a hundred find stock.
const STOCK_PERCENT: usize = 30;
/// Longest duration of the whole sale, which ends with its buyers.
const LONGEST: Duration = Duration::from_secs(60);

/// Answers by the names that the plan knows them by.
const STRATEGIES: [&str; 3] = ["group-commit", "reentrant-lock", "stream"];
const SOLD_OUT: &str = "sold-out";

/// Measures them.
pub async fn measure(
    environment: &Environment,
) -> anyhow::Result<(Vec<NamedAnswer>, MeasuredSale)> {
    let server = servers::instance(environment, "scale-one", &[]).await?;
    let buyers = environment.buyers.len();
    let stock = buyers * STOCK_PERCENT / 100;
    let plan = |strategy| {
        let plan = Plan::new(strategy, environment, &server);
        Plan { clients: CLIENTS, ..plan }
    };
    let one = plan("group-commit");
    let mut plans = STRATEGIES.map(plan).to_vec();
    plans.push(Plan { name: SOLD_OUT, stock: Stock::SoldOut, repeat: true, ..one.clone() });
    let limited = Stock::Limited(u32::try_from(stock)?);
    plans.push(Plan { name: "a whole sale", stock: limited, duration: LONGEST, ..one });
    let measure = async |_: usize, plan: &Plan<'_>| {
        let (run, attempts) = plan.run().await?;
        let times = match plan.stock {
            Stock::Limited(_) => times(&run, &attempts, stock)?,
            _ => [0.0; 4],
        };
        anyhow::Ok((run, times))
    };
    let mut measured = interleaved(environment.settings.rounds, &plans, measure).await?;
    let whole = measured.pop().unwrap_or_default();
    let named = |runs: Vec<(Run, [f64; 4])>| {
        let runs: Vec<Run> = runs.into_iter().map(|(run, _)| run).collect();
        let name = runs.first().map_or("", |run| run.name);
        let rate: fn(&Run) -> f64 = match name {
            SOLD_OUT => |run| run.answers_per_s,
            _ => |run| run.orders_per_s,
        };
        NamedAnswer { name: name.to_owned(), answer: answer(&runs, &runs, rate) }
    };
    let [sold_out_s, answered_s, p99_s, cores] =
        [0, 1, 2, 3].map(|at| median(whole.iter().map(|(_, times)| times[at])));
    let sale = MeasuredSale {
        strategy: "group-commit".to_owned(),
        buyers: buyers as u64,
        stock: stock as u64,
        connections: CLIENTS as u64,
        cores,
        sold_out_s,
        answered_s,
        p99_s,
    };
    Ok((measured.into_iter().map(named).collect(), sale))
}

/// From the opening: to the last order, to the last answer, and until 99 % were answered, in seconds; and the processors
/// that were busy meanwhile.
fn times(run: &Run, attempts: &Attempts, stock: usize) -> anyhow::Result<[f64; 4]> {
    let end_s = |due_us: u32, latency_us: u32| (f64::from(due_us) + f64::from(latency_us)) / 1e6;
    let mut ends: Vec<(f64, bool)> = attempts
        .list
        .iter()
        .map(|attempt| {
            let is_order = matches!(attempt.outcome, Outcome::Ordered(_));
            (end_s(attempt.due_us, attempt.latency_us), is_order)
        })
        .collect();
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    let orders = ends.iter().filter(|(_, is_order)| *is_order).count();
    ensure!(orders == stock, "{orders} orders of a stock of {stock}");
    let sold_out = ends.iter().rfind(|(_, is_order)| *is_order).map_or(0.0, |(end, _)| *end);
    let at = |share: f64| ends[((ends.len() - 1) as f64 * share) as usize].0;
    let used_s = (run.cpu.servers_us() + run.cpu.client_us) * attempts.list.len() as f64 / 1e6;
    Ok([sold_out, at(1.0), at(0.99), used_s / at(1.0)])
}
