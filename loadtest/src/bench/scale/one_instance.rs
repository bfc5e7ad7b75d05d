//! What the capacity plan is fed with: the answers of each strategy on one instance, and a whole sale with which the plan
//! is compared, in the same rounds.

use std::time::Duration;

use anyhow::ensure;
use seckill_loadtest::plan::figures::{MeasuredSale, NamedAnswer};

use super::growth::{answer, middle};
use super::{CLIENTS, Scale, say};
use crate::bench::environment::{Buyers, Environment};
use crate::bench::generator::{Attempts, Outcome};
use crate::bench::ratios::figure;
use crate::bench::runs::{Plan, Run, Runner, Stock};
use crate::bench::servers;

/// Of the buyers of the whole sale so many in a hundred find stock.
const STOCK_PERCENT: usize = 30;
/// Longest duration of the whole sale, which ends with its buyers.
const LONGEST: Duration = Duration::from_secs(60);

/// Answers by the names that the plan knows them by; the last is a refusal.
const NAMES: [&str; 4] = ["group-commit", "reentrant-lock", "stream", "sold-out"];

impl Scale<'_> {
    /// Measures them.
    pub(super) async fn one_instance(
        &self,
        main: &Environment,
        buyers: &Buyers,
    ) -> anyhow::Result<(Vec<NamedAnswer>, MeasuredSale)> {
        say("one instance");
        let server = servers::instance(main, "scale-1", &[]).await?;
        let publisher = server.target.clone();
        let mut runner = Runner { environment: main, buyers, publisher, runs: Vec::new() };
        let mut runs = NAMES.map(|_| Vec::new());
        let mut sales = Vec::new();
        let stock = buyers.users.len() * STOCK_PERCENT / 100;
        for round in 0..=self.settings.rounds {
            for (name, runs) in NAMES.into_iter().zip(&mut runs) {
                let base = Plan::new(name, &server, self.settings.duration);
                let plan = Plan { clients: CLIENTS, ..base };
                let plan = match name {
                    "sold-out" => Plan {
                        strategy: "group-commit",
                        stock: Stock::SoldOut,
                        repeat: true,
                        ..plan
                    },
                    _ => plan,
                };
                let run = runner.run(&plan, round).await?;
                say(&format!("    {name}: {} µs", figure(run.cpu.servers_us())));
                if round > 0 {
                    runs.push(run);
                }
            }
            let plan = Plan {
                name: "a whole sale",
                stock: Stock::Limited(u32::try_from(stock)?),
                clients: CLIENTS,
                ..Plan::new("group-commit", &server, LONGEST)
            };
            let run = runner.run(&plan, round).await?;
            if round > 0 {
                let [sold_out_s, answered_s, p99_s] = times(&run.attempts, stock)?;
                let used_s = run.cpu.all_us() * run.attempts.list.len() as f64 / 1e6;
                sales.push([sold_out_s, answered_s, p99_s, used_s / answered_s]);
            }
        }
        let rate = |name: &str| match name {
            "sold-out" => |run: &Run| run.answers_per_s,
            _ => |run: &Run| run.orders_per_s,
        };
        let named = |(name, runs): (&str, &Vec<Run>)| NamedAnswer {
            name: name.to_owned(),
            answer: answer(runs, runs, rate(name)),
        };
        let answers = NAMES.into_iter().zip(&runs).map(named).collect();
        let [sold_out_s, answered_s, p99_s, cores] =
            [0, 1, 2, 3].map(|at| middle(sales.iter().map(|times| times[at])));
        let sale = MeasuredSale {
            strategy: "group-commit".to_owned(),
            buyers: buyers.users.len() as u64,
            stock: stock as u64,
            connections: CLIENTS as u64,
            cores,
            sold_out_s,
            answered_s,
            p99_s,
        };
        Ok((answers, sale))
    }
}

/// From the opening: to the last order, to the last answer, and until 99 % were answered; seconds.
fn times(attempts: &Attempts, stock: usize) -> anyhow::Result<[f64; 3]> {
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
    Ok([sold_out, at(1.0), at(0.99)])
}
