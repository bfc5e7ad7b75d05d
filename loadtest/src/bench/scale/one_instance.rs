//! What the capacity plan is fed with: the answers of each strategy on one instance, and a whole sale with which the plan
//! is compared, in the same rounds.

use std::time::Duration;

use crate::plan::figures::{MeasuredSale, NamedAnswer};
use anyhow::ensure;

use super::growth::{CLIENTS, answer};
use crate::bench::environment::Environment;
use crate::bench::generator::Attempts;
use crate::bench::plan::{Plan, Stock};
use crate::bench::run::{ANSWERS_PER_S, ORDERS_PER_S, Run};
use crate::bench::servers;
use crate::spread::median;

/// Of the buyers of the whole sale so many in a hundred find stock.
const STOCK_PERCENT: usize = 30;
/// Longest duration of the whole sale, which ends with its buyers.
const LONGEST: Duration = Duration::from_secs(60);

/// Measures them. The plan knows answers by these names.
pub async fn measure(
    environment: &Environment,
) -> anyhow::Result<(Vec<NamedAnswer>, MeasuredSale)> {
    let server = servers::instance(environment, "scale-one", &[]).await?;
    let buyers = environment.buyers.len();
    let stock = buyers * STOCK_PERCENT / 100;
    let plan = |strategy| Plan { clients: CLIENTS, ..Plan::new(strategy, environment, &server) };
    let one = plan("group-commit");
    let limited = Stock::Limited(u32::try_from(stock)?);
    let plans = [
        one.clone(),
        plan("reentrant-lock"),
        plan("stream"),
        Plan { name: "sold-out", stock: Stock::SoldOut, ..one.clone() },
        Plan { name: "a whole sale", stock: limited, duration: LONGEST, ..one },
    ];
    let measure = async |_: usize, plan: &Plan<'_>| {
        let (run, attempts) = plan.run().await?;
        let times = match plan.stock {
            Stock::Limited(_) => times(&run, &attempts, stock)?,
            _ => [0.0; 4],
        };
        anyhow::Ok((run, times))
    };
    let mut measured = environment.args.interleaved(&plans, measure).await?;
    let whole = measured.pop().unwrap_or_default();
    let named = |(plan, runs): (&Plan<'_>, Vec<(Run, [f64; 4])>)| {
        let runs: Vec<Run> = runs.into_iter().map(|(run, _)| run).collect();
        let rate = match plan.stock {
            Stock::SoldOut => ANSWERS_PER_S,
            _ => ORDERS_PER_S,
        };
        NamedAnswer { name: plan.name.to_owned(), answer: answer(&runs, &runs, rate) }
    };
    let answers = plans.iter().zip(measured).map(named).collect();
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
    Ok((answers, sale))
}

/// From the opening: to the last order, to the last answer, and until 99 % were answered, in seconds; and the processors
/// that were busy meanwhile.
fn times(run: &Run, attempts: &Attempts, stock: usize) -> anyhow::Result<[f64; 4]> {
    let orders = attempts.list.iter().filter(|attempt| attempt.is_order());
    let (orders, sold_out) = (orders.clone().count(), orders.map(|attempt| attempt.end).max());
    ensure!(orders == stock, "{orders} orders of a stock of {stock}");
    let mut ends: Vec<Duration> = attempts.list.iter().map(|attempt| attempt.end).collect();
    ends.sort_unstable();
    let at = |share: f64| ends[((ends.len() - 1) as f64 * share) as usize].as_secs_f64();
    let used_s = (run.cpu.servers_us() + run.cpu.client_us) * attempts.list.len() as f64 / 1e6;
    let sold_out_s = sold_out.unwrap_or_default().as_secs_f64();
    Ok([sold_out_s, at(1.0), at(0.99), used_s / at(1.0)])
}
