//! Measurements for the report's plots, beside the ratios: rate by strategy, and a sale that sells out. Audited like all
//! runs.

use std::time::Duration;

use serde::Serialize;
use workload::comparison::batches::Batches;
use workload::ladder::Strategy;
use workload::live::Progress;

use crate::bench::generator::Outcome;
use crate::bench::ratios::{figure, median};
use crate::bench::runs::{Plan, Run, Runner, Stock, sample_stock};
use crate::bench::servers::Servers;

/// The numbers of the plots.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Scenarios {
    /// Orders per second of each safe strategy: (name, median).
    pub strategies: Vec<(String, f64)>,
    /// A sale that sells out.
    pub sale: Sale,
    /// Batches of group-commit during the rounds: (largest size, count).
    pub batches: Vec<(u64, u64)>,
}

/// A sale from its first order to "sold out".
#[derive(Debug, Clone, Default, Serialize)]
pub struct Sale {
    /// The stock at the beginning.
    pub stock: u32,
    /// Replies with an order so far: (seconds, count).
    pub orders: Vec<(f64, f64)>,
    /// Stock left in the database: (seconds, count).
    pub left: Vec<(f64, f64)>,
    /// Refusals so far: (seconds, count).
    pub refused: Vec<(f64, f64)>,
}

/// Measures them, with runs of `duration`.
///
/// # Errors
/// A server fails, or a run fails the audit.
pub async fn measure(
    runner: &mut Runner<'_>,
    servers: &Servers,
    duration: Duration,
) -> anyhow::Result<Scenarios> {
    Progress::Stderr.say("runs for the plots");
    let batches = Batches::read(std::slice::from_ref(&servers.one.target)).await.sizes();
    let mut strategies = Vec::new();
    let safe = Strategy::ALL.into_iter().filter(|strategy| !strategy.is_unsafe());
    for strategy in safe.map(Strategy::name) {
        let runs = runner.runs.iter().filter(|run| run.name == strategy && run.clients == 256);
        let rate = match median(&runs.map(|run| run.orders_per_s).collect::<Vec<_>>()) {
            Some(rate) => rate,
            None if runner.publish(strategy, 1).await.is_err() => continue,
            None => {
                let plan = Plan::new(strategy, &servers.one, duration);
                runner.run(&plan, 0).await?.orders_per_s
            }
        };
        Progress::Stderr.say(&format!("    {strategy}: {} orders/s", figure(rate)));
        strategies.push((strategy.to_owned(), rate));
    }
    let fastest = strategies.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let base = Plan::new("group-commit", &servers.one, duration);
    // A stock that lasts for half of the run.
    let stock = (fastest * duration.as_secs_f64() / 2.0).clamp(100.0, 100_000.0) as u32;
    let plan = Plan { name: "a sale that sells out", stock: Stock::Limited(stock), ..base };
    let voucher = runner.publish(plan.strategy, stock).await?;
    let environment = runner.environment;
    let run = runner.run_on(&plan, 0, Some(voucher..=voucher));
    let (run, left) = sample_stock(environment, voucher, run).await;
    Ok(Scenarios { strategies, sale: sale(stock, &run?, &left), batches })
}

/// Adds up the answers over time, in some two hundred points.
fn sale(stock: u32, run: &Run, left: &[(f64, i64)]) -> Sale {
    let mut ends: Vec<(f64, bool)> = run
        .attempts
        .list
        .iter()
        .map(|attempt| {
            let at = (f64::from(attempt.due_us) + f64::from(attempt.latency_us)) / 1e6;
            (at, matches!(attempt.outcome, Outcome::Ordered(_)))
        })
        .collect();
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    let step = (ends.len() / 200).max(1);
    let (mut sale, mut ordered, mut refused) = (Sale { stock, ..Sale::default() }, 0.0, 0.0);
    for (at, (time, is_order)) in ends.iter().enumerate() {
        if *is_order {
            ordered += 1.0
        } else {
            refused += 1.0
        }
        if at % step == 0 || at + 1 == ends.len() {
            sale.orders.push((*time, ordered));
            sale.refused.push((*time, refused));
        }
    }
    // Sampling began earlier, before connections were opened: time 0 is where the stock begins to fall.
    let end = ends.last().map_or(0.0, |(time, _)| *time);
    let before = left.iter().take_while(|(_, count)| *count == i64::from(stock)).last();
    let zero = before.map_or(0.0, |(time, _)| *time);
    let samples = left.iter().map(|(time, count)| (time - zero, *count as f64));
    sale.left = samples.filter(|(time, _)| (0.0..=end).contains(time)).collect();
    sale
}
